"""What it costs an app to import us."""
