"""Figures ready for a paper: functions that take what they draw, and the style they share."""
