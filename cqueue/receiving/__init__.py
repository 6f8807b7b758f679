"""Inside a consumer: poll, claim ahead, hand over messages, keep and settle their leases."""
