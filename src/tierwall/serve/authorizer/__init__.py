"""`tierwall authorizer`: the api plane as a webhook, and as a bridge for API servers that know no conditions."""
