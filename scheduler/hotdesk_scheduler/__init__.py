"""The scheduler: a pure core that decides, engines that run pods, a service that joins them, REST in front."""
