/* What the machine gives: instruction sets, and threads that are there already. */
#ifndef LMLANG_MACHINE_H
#define LMLANG_MACHINE_H

enum { LM_PLAIN, LM_AVX2, LM_AVX512 };

/* The instruction set in use. */
int lm_level(void);

/* Calls fn(argument, share) for every share of 0 .. shares-1, on as many threads where there are. */
void lm_parallel(void (*fn)(void *, int), void *argument, int shares);

#endif
