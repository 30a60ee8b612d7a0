//! The layouts of the structs, compared with those that libclang reads from the C header of version 0.114.
//!
//! The numbers are those of `pypjrt` 0.1.1 (PyPI), `pypjrt/_abi/pjrt_0_114.py`: `_STRUCT_SIZE` and `_OFFSETS_…`.

use std::mem::offset_of;

use super::*;

macro_rules! layouts {
    ($($name:ident $size:literal { $($field:ident: $offset:literal),* $(,)? })*) => {$(
        let given = $name::default();
        assert_eq!(given.struct_size, $size, "size of {}", stringify!($name));
        assert_eq!(offset_of!($name, extension_start), 8);
        $(assert_eq!(offset_of!($name, $field), $offset, "{}.{}", stringify!($name), stringify!($field));)*
    )*};
}

#[test]
fn table_begins_after_the_version() {
    assert_eq!((offset_of!(Api, version), offset_of!(Api, functions)), (16, 40));
    assert_eq!((offset_of!(ApiVersion, major), offset_of!(ApiVersion, minor)), (16, 20));
}

#[test]
#[rustfmt::skip]
fn layouts_are_those_of_the_header() {
    layouts! {
    ErrorDestroy 24 { error: 16 }
    ErrorMessage 40 { error: 16, message: 24, message_size: 32 }
    ErrorGetCode 28 { error: 16, code: 24 }
    PluginInitialize 16 {}
    PluginAttributes 32 { attributes: 16, num_attributes: 24 }
    EventDestroy 24 { event: 16 }
    EventIsReady 25 { event: 16, is_ready: 24 }
    EventAwait 24 { event: 16 }
    ClientCreate 88 {
        create_options: 16,
        num_options: 24,
        kv_get_callback: 32,
        kv_get_user_arg: 40,
        kv_put_callback: 48,
        kv_put_user_arg: 56,
        client: 64,
        kv_try_get_callback: 72,
        kv_try_get_user_arg: 80,
    }
    ClientDestroy 24 { client: 16 }
    ClientPlatformName 40 { client: 16, platform_name: 24, platform_name_size: 32 }
    ClientProcessIndex 28 { client: 16, process_index: 24 }
    ClientPlatformVersion 40 { client: 16, platform_version: 24, platform_version_size: 32 }
    ClientAddressableDevices 40 { client: 16, addressable_devices: 24, num_addressable_devices: 32 }
    ClientCompile 56 {
        client: 16,
        program: 24,
        compile_options: 32,
        compile_options_size: 40,
        executable: 48,
    }
    ClientBufferFromHostBuffer 120 {
        client: 16,
        data: 24,
        kind: 32,
        dims: 40,
        num_dims: 48,
        byte_strides: 56,
        num_byte_strides: 64,
        host_buffer_semantics: 72,
        device: 80,
        memory: 88,
        device_layout: 96,
        done_with_host_buffer: 104,
        buffer: 112,
    }
    DeviceDescriptionId 28 { device_description: 16, id: 24 }
    DeviceDescriptionKind 40 { device_description: 16, device_kind: 24, device_kind_size: 32 }
    DeviceDescriptionDebugString 40 { device_description: 16, debug_string: 24, debug_string_size: 32 }
    DeviceGetDescription 32 { device: 16, device_description: 24 }
    DeviceMemoryStats 201 {
        device: 16,
        bytes_in_use: 24,
        peak_bytes_in_use: 32,
        peak_bytes_in_use_is_set: 40,
        num_allocs: 48,
        num_allocs_is_set: 56,
        largest_alloc_size: 64,
        largest_alloc_size_is_set: 72,
        bytes_limit: 80,
        bytes_limit_is_set: 88,
        bytes_reserved: 96,
        bytes_reserved_is_set: 104,
        peak_bytes_reserved: 112,
        peak_bytes_reserved_is_set: 120,
        bytes_reservable_limit: 128,
        bytes_reservable_limit_is_set: 136,
        largest_free_block_bytes: 144,
        largest_free_block_bytes_is_set: 152,
        pool_bytes: 160,
        pool_bytes_is_set: 168,
        peak_pool_bytes: 176,
        peak_pool_bytes_is_set: 184,
        peak_allocated_bytes: 192,
        peak_allocated_bytes_is_set: 200,
    }
    ExecutableDestroy 24 { executable: 16 }
    ExecutableNumOutputs 32 { executable: 16, num_outputs: 24 }
    ExecutableSerialize 56 {
        executable: 16,
        serialized_bytes: 24,
        serialized_bytes_size: 32,
        serialized_executable: 40,
        serialized_executable_deleter: 48,
    }
    LoadedExecutableDestroy 24 { executable: 16 }
    LoadedExecutableGetExecutable 32 { loaded_executable: 16, executable: 24 }
    LoadedExecutableAddressableDevices 40 {
        executable: 16,
        addressable_devices: 24,
        num_addressable_devices: 32,
    }
    LoadedExecutableExecute 80 {
        executable: 16,
        options: 24,
        argument_lists: 32,
        num_devices: 40,
        num_args: 48,
        output_lists: 56,
        device_complete_events: 64,
        execute_device: 72,
    }
    ExecutableDeserializeAndLoad 72 {
        client: 16,
        serialized_executable: 24,
        serialized_executable_size: 32,
        loaded_executable: 40,
        overridden_serialized_compile_options: 48,
        overridden_serialized_compile_options_size: 56,
        load_options: 64,
    }
    BufferDestroy 24 { buffer: 16 }
    BufferGetMemoryLayout 104 { buffer: 16, layout: 24 }
    BufferOnDeviceSizeInBytes 32 { buffer: 16, on_device_size_in_bytes: 24 }
    BufferIsDeleted 25 { buffer: 16, is_deleted: 24 }
    BufferCopyToDevice 40 { buffer: 16, dst_device: 24, dst_buffer: 32 }
    BufferToHostBuffer 56 { src: 16, host_layout: 24, dst: 32, dst_size: 40, event: 48 }
    BufferIsOnCpu 25 { buffer: 16, is_on_cpu: 24 }
    BufferReadyEvent 32 { buffer: 16, event: 24 }
    BufferUnsafePointer 32 { buffer: 16, buffer_pointer: 24 }
    ExecutableOutputElementTypes 40 { executable: 16, output_types: 24, num_output_types: 32 }
    ExecutableOutputDimensions 48 { executable: 16, num_outputs: 24, dims: 32, dim_sizes: 40 }
    ExecutableGetCompiledMemoryStats 144 {
        executable: 16,
        generated_code_size_in_bytes: 24,
        argument_size_in_bytes: 32,
        output_size_in_bytes: 40,
        alias_size_in_bytes: 48,
        temp_size_in_bytes: 56,
        host_generated_code_size_in_bytes: 64,
        host_argument_size_in_bytes: 72,
        host_output_size_in_bytes: 80,
        host_alias_size_in_bytes: 88,
        host_temp_size_in_bytes: 96,
        peak_memory_in_bytes: 104,
        total_size_in_bytes: 112,
        total_allocation_bytes: 120,
        indefinite_allocations: 128,
        peak_unpadded_heap_bytes: 136,
    }
    Program 48 { code: 16, code_size: 24, format: 32, format_size: 40 }
    ExecuteOptions 144 {
        send_callbacks: 16,
        recv_callbacks: 24,
        num_send_ops: 32,
        num_recv_ops: 40,
        launch_id: 48,
        non_donatable_input_indices: 56,
        num_non_donatable_input_indices: 64,
        context: 72,
        call_location: 80,
        num_tasks: 88,
        task_ids: 96,
        incarnation_ids: 104,
        multi_slice_config: 112,
        use_major_to_minor_data_layout_for_callbacks: 120,
        hlo_output_callbacks: 128,
        num_hlo_output_callbacks: 136,
    }
    NamedValue 56 { name: 16, name_size: 24, kind: 32, value_size: 48 }
    TiledLayout 56 {
        minor_to_major: 16,
        minor_to_major_size: 24,
        tile_dims: 32,
        tile_dim_sizes: 40,
        num_tiles: 48,
    }
    MemoryLayout 76 { kind: 72 }
    }
    assert_eq!(offset_of!(NamedValue, data), 40);
    assert_eq!((offset_of!(MemoryLayout, tiled), size_of::<TiledLayout>()), (16, 56));
}
