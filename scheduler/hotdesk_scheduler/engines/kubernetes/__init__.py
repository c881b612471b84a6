"""The engine of a Kubernetes cluster: projects and workloads as custom resources of `hotdesk.io`, pods as pods."""
