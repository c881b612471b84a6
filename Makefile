include /dev/null
