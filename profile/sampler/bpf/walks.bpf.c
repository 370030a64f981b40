/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What waits.bpf.c is before Linux 5.18: a program that may not sleep. */
#define TWO_WALKS
#include "waits.bpf.c"
