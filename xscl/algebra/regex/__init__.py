"""Regular expressions of XPath 2.0: read, and searched for in linear time."""
