/* Takes back what each_isa.h and vector.h define for one instruction set. */
#undef LANES
#undef BLOCK
#undef WIDE
#undef TARGET
#undef N
#undef vf
#undef vi
#undef vu
#undef INLINE
#undef EACH
