# cmake -DSOURCES=FILE -DSOURCE_DIR=DIR -DVERSION=0.1.0 -DOUTPUT=FILE.cc -P version.cmake: writes the body of
# kernels/base/version.h. SOURCES lists what the hash is of, a path to a line.
file(STRINGS ${SOURCES} sources)
set(hashes "")
foreach(source ${sources})
  file(SHA256 ${source} hash)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${SOURCE_DIR})
  string(APPEND hashes "${hash} ${source}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 12 hash)
file(WRITE ${OUTPUT} "#include \"kernels/base/version.h\"

namespace lockstep {

const char* Version() { return \"${VERSION}+${hash}\"; }

}  // namespace lockstep
")
