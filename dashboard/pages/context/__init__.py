"""The context of a run: configuration, command, code version, versions, hosts, disk usage, audit entries."""
