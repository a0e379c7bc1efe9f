"""Updates per second of a parameter server, against other ones and against what the machine can."""
