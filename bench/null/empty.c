// A preload that holds nothing: what the dynamic linker itself takes for one more library.
