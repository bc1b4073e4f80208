"""The values of our Helm chart."""
