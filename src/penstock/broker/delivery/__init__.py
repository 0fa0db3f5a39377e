"""When and to whom a stored message is delivered: held pulls, filters, delays, retries."""
