"""Regular expressions of XPath 2.0, searched for in linear time."""
