/* The note of opgraft_add_op, with an ABI version and an op.yaml of the test's choosing. */
  .section .note.opgraft, "a", @note
  .balign 4
  .long 8, 2f - 1f, 1
  .asciz "opgraft"
1:
  .long NOTE_ABI
  .incbin NOTE_YAML
2:
  .balign 4
  .section .note.GNU-stack, "", @progbits
