"""What every room may use and none owns: whole files, locks, modes of files, batches, XML from strangers."""
