"""What operators do beside the work itself: look ahead, put things right."""
