"""The numbers of a comparison, one file a level; docs/compare.md defines each."""
