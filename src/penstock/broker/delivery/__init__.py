"""When and to which consumers messages are delivered: held pulls, filters, delays, retries."""
