"""The api plane: conditional authorization, decided in two phases (KEP-5681). Reads no files, clocks or sockets."""
