"""What the areas show: functions of a site that return dataclasses, for the pages and the API alike."""
