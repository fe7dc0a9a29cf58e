# Debian package: `cmake --build BUILD --target brim brim_shared && (cd BUILD && cpack)` creates brim_VERSION_ARCHITECTURE.deb
# with the program, the library, the default model, man pages, completion, systemd units and licences.
install(TARGETS brim RUNTIME DESTINATION bin COMPONENT deb EXCLUDE_FROM_ALL)
install(DIRECTORY models DESTINATION share/brim COMPONENT deb EXCLUDE_FROM_ALL PATTERN "train_log.jsonl" EXCLUDE)
if(TARGET brim_shared)
  brim_install_library(brim-deb-targets lib/${CMAKE_LIBRARY_ARCHITECTURE} COMPONENT deb EXCLUDE_FROM_ALL)
endif()
install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/packaging/lay_out $<TARGET_FILE:brim>
  \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX} ${PROJECT_VERSION} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT deb EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME brim)
file(STRINGS SECURITY.md contact REGEX "Contact: ")  # the only place of the address
string(REGEX MATCH "[a-z]+@[a-z.]+" contact "${contact}")
set(CPACK_PACKAGE_CONTACT "Brim developers <${contact}>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train, run and serve text classifiers within a planned memory limit")
set(CPACK_PACKAGE_DESCRIPTION "Brim trains, runs and serves text classifiers, taggers and sentence encoders
(BERT, RoBERTa, DistilBERT and related models) on CPUs and NVIDIA GPUs. It
plans the memory of a run before it starts and keeps to a given limit.
A sentiment model, VADER, and the C++ library with its headers are included.")
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};brim;deb;/")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # packages that use the library depend on this version
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/packaging/triggers)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libcurl4)  # loaded at run time by `brim profile --llm-url` only
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
