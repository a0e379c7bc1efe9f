"""How fast codecs encode and decode, and how many bytes they leave."""
