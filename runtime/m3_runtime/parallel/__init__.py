"""One model on several ranks: processes with a device each, of which rank 0 decides and the others follow."""
