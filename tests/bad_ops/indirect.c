int vanished(void);
int indirect(void) { return vanished(); }
