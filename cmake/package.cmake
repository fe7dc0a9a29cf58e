# Debian package: `cmake --build BUILD --target brim && (cd BUILD && cpack)` writes brim_VERSION_ARCHITECTURE.deb with the
# program, the default model, manual pages, shell completion, systemd units and licences.
install(TARGETS brim RUNTIME DESTINATION bin COMPONENT deb EXCLUDE_FROM_ALL)
install(DIRECTORY models DESTINATION share/brim COMPONENT deb EXCLUDE_FROM_ALL PATTERN "train_log.jsonl" EXCLUDE)
install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/packaging/lay_out $<TARGET_FILE:brim>
  \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX} ${PROJECT_VERSION} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT deb EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME brim)
set(CPACK_PACKAGE_CONTACT "Brim developers <maintainers@brim.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fast training and inference of text classifiers")
set(CPACK_PACKAGE_DESCRIPTION "Brim scores, trains and serves fine-tuned text classifiers, taggers and
encoders (BERT, RoBERTa, XLM-R, DistilBERT and relatives) on CPUs and NVIDIA
GPUs, within a given memory limit. A sentiment model and the VADER rules are
included.")
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};brim;deb;/")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libcurl4)  # loaded at run time, only by `brim profile --llm-url`
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
