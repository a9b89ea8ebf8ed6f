"""What pages are made of: texts from outside made safe, HTML, colours, icons, the words of values and times."""
