int BenchMain(int, char**) { return 0; }
