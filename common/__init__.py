"""What every room may use and none owns: whole files, modes of files, XML from strangers."""
