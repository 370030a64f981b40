# Builds a free-threaded Python from the source that Debian packages. Arguments: SERIES ORIGINAL JOBS. It runs in the folder
# that gets the folder `tree`.
series=$1 original=$2 jobs=$3
# Modules of the standard library that no test imports, and that take long to compile or need a library.
without="_codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw
    _curses _curses_panel _decimal _multibytecodec _sqlite3 _tkinter"
tree=$PWD/tree
mkdir source build
tar --extract --strip-components=1 --file "$original" -C source
cd build
# Without debug information, which takes 60 MB, and quick to compile.
../source/configure --prefix=/usr --disable-gil --without-ensurepip --disable-test-modules \
    --without-static-libpython 'OPT=-DNDEBUG -O1' \
    $(printf 'py_cv_module_%s=n/a ' $without) > /dev/null
make --silent --jobs="$jobs" > /dev/null
# It compiles the standard library three times otherwise.
make --silent altinstall 'COMPILEALL_OPTS=-x .' DESTDIR="$tree" > /dev/null
cd ..
python=tree/usr/bin/python${series}t
"$python" -c 'import ctypes, hashlib, ssl, sys, zlib; assert not sys._is_gil_enabled()'
"$python" -m compileall -q -j0 "$tree/usr/lib/python${series}t"
rm -rf source build
