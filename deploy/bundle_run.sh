#!/bin/sh
# In a bundle (deploy/bundle.sh) this is bin/lockstep, bin/mpirun and bin/orted: runs the program of its own name from the directory it was
# unpacked to. A script, because Open MPI looks for its modules where it was configured to lie unless the environment says otherwise, and
# because the ranks of other hosts are started by their own bin/orted.
self=$(readlink -f "$0")
root=${self%/bin/*}
export OPAL_PREFIX="$root" OPAL_BINDIR="$root/bin" OPAL_LIBDIR="$root/lib" OPAL_PKGLIBDIR="$root/lib/openmpi" \
  OPAL_DATADIR="$root/share" OPAL_PKGDATADIR="$root/share/openmpi" OPAL_SYSCONFDIR="$root/etc" \
  PMIX_INSTALL_PREFIX="$root" PMIX_PKGLIBDIR="$root/lib/pmix" PMIX_PKGDATADIR="$root/share/pmix" PMIX_SYSCONFDIR="$root/etc" \
  HWLOC_PLUGINS_PATH="$root/lib/hwloc" PATH="$root/bin:$PATH"
case ${self##*/} in
  # With its prefix, so that it starts this bundle's orted on other hosts.
  mpirun*) exec "$root/libexec/mpirun" --prefix "$root" "$@" ;;
  *) exec "$root/libexec/${self##*/}" "$@" ;;
esac
