// An empty library to preload. It shows how much time the dynamic linker needs to load one more
// library.
