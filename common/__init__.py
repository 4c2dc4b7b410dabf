"""What every room uses and none owns: the root of the errors, whole files, modes of files, what precedes XML's root."""
