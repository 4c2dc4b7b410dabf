"""What every room uses and none owns: the root of errors, whole files, locks, modes of files, batches, XML."""
