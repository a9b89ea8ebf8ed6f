"""The systems past one machine with thousands of targets, while each of their parts is killed."""
