/* One unit of a big program: 400 functions with functions inlined into them. UNIT is its number;
   the bench program makes the other units of this one's object file. */

#define PASTE2(a, b) a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define NAME(stem) PASTE(stem, UNIT)
#define INLINED static inline __attribute__((always_inline)) long

struct NAME(request) {
	long id;
	int kind;
	char path[32];
	struct NAME(request) *next;
};

INLINED NAME(mix)(long a, long b)
{
	long x = a ^ b * 31;
	x ^= x >> 7;
	return x * 0x9e3779b9L;
}

INLINED NAME(hash)(struct NAME(request) *r, long seed)
{
	long h = seed;
	for (int i = 0; i < 8; i++)
		h = NAME(mix)(h, r->path[i]);
	return h;
}

INLINED NAME(route)(struct NAME(request) *r, long seed)
{
	long h = NAME(hash)(r, seed);
	return r->kind > 3 ? NAME(mix)(h, r->id) : NAME(mix)(h, r->kind) + NAME(hash)(r, h);
}

#define HANDLE(n) \
	__attribute__((noinline)) long PASTE(NAME(handle), n)(struct NAME(request) *r, long seed) \
	{ \
		long total = seed + n; \
		for (struct NAME(request) *at = r; at; at = at->next) { \
			total += NAME(route)(at, total); \
			if (total & n) \
				total ^= NAME(route)(at, n); \
		} \
		return total; \
	}
#define CALL(n) total += PASTE(NAME(handle), n)(&r, total);
#define TEN(f, n) f(n##0) f(n##1) f(n##2) f(n##3) f(n##4) f(n##5) f(n##6) f(n##7) f(n##8) f(n##9)
#define HUNDRED(f, n) \
	TEN(f, n##0) TEN(f, n##1) TEN(f, n##2) TEN(f, n##3) TEN(f, n##4) \
	TEN(f, n##5) TEN(f, n##6) TEN(f, n##7) TEN(f, n##8) TEN(f, n##9)

HUNDRED(HANDLE, 1) HUNDRED(HANDLE, 2) HUNDRED(HANDLE, 3) HUNDRED(HANDLE, 4)

long NAME(sink);

void NAME(run)(long seed)
{
	struct NAME(request) r = { seed, 4, "/cart", 0 };
	long total = seed;
	HUNDRED(CALL, 1) HUNDRED(CALL, 2) HUNDRED(CALL, 3) HUNDRED(CALL, 4)
	NAME(sink) = total;
}
