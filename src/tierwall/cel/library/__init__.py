"""The function libraries, one file each; every file has `OVERLOADS`, its part of the one function table."""
