"""`tierwall authorizer`: the api plane as a webhook, and as a bridge to API servers that know no conditions."""
