int vanished(void) { return 0; }
