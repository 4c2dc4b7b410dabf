<<<<<<< HEAD
"""Tests of what is explained to people."""
=======
"""Tests of `mmqjp.explain`."""
>>>>>>> be4ce05 (mmqjp matches: what matched, when and why, in six formats; run and query have them too)
