"""Plans for serving: engines, parallel sizes, replicas and users."""
