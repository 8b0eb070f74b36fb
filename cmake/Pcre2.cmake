# Target pcre2, where it is found; the static library, so that the program needs none at run time. 10.40 is the first
# with \p{White_Space}.
find_path(PCRE2_INCLUDE pcre2.h)
find_library(PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8)
if(PCRE2_INCLUDE AND PCRE2_LIBRARY)
  file(STRINGS "${PCRE2_INCLUDE}/pcre2.h" numbers REGEX "^#define PCRE2_(MAJOR|MINOR)")
  string(REGEX REPLACE "[^0-9]*2_MAJOR[^0-9]*([0-9]+)[^0-9]*2_MINOR[^0-9]*([0-9]+).*" "\\1.\\2" PCRE2_VERSION "${numbers}")
endif()
if(PCRE2_VERSION VERSION_GREATER_EQUAL 10.40)
  add_library(pcre2 UNKNOWN IMPORTED)
  set_target_properties(pcre2 PROPERTIES IMPORTED_LOCATION "${PCRE2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PCRE2_INCLUDE}")
else()
  message(STATUS "opgraft_generate is left out: it needs PCRE2 10.40 or newer (libpcre2-dev), found ${PCRE2_LIBRARY} ${PCRE2_VERSION}")
endif()
