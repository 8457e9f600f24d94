#!/bin/sh
# Run a command on a machine without a GPU as if it had one: WebGPU on SwiftShader, a Vulkan driver in software that comes with Chromium.
#
#   sudo tests/helpers/software_webgpu.sh /usr/lib/chromium .venv/bin/python -m pytest tests/export/test_variants.py
#
# ONNX Runtime looks for graphics cards in /sys/class/drm. One is made up there, in a mount namespace of this command's own.
set -eu
if [ "$1" != --inside ]; then
    exec unshare --mount "$0" --inside "$@"
fi
folder=$2
shift 2
mount -t tmpfs none /sys/class
mkdir -p /sys/class/drm/card0/device
echo 0x8086 > /sys/class/drm/card0/device/vendor
echo 0x0000 > /sys/class/drm/card0/device/device
export VK_ICD_FILENAMES="$folder/vk_swiftshader_icd.json" VK_DRIVER_FILES="$folder/vk_swiftshader_icd.json" LD_LIBRARY_PATH="$folder"
exec "$@"
