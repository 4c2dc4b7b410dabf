"""What every room may use and none owns: the root of the errors, whole files, modes of files, XML from strangers."""
