//! The C interface of PJRT, as far as this crate uses it.
//!
//! Every function takes one pointer to a struct of arguments, which begins with its own size and a pointer to
//! extensions. The size is the end of the last field, without tail padding. A plugin with an older header reads the part
//! of a struct that it knows, so the newest layout is sent to all.
//!
//! Functions are found by their position in the table of the plugin, which has been stable since version 0.57.

#![allow(unsafe_code)]

use std::ffi::c_void;

#[cfg(test)]
mod tests;

/// Objects of the plugin, seen only through pointers.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name([u8; 0]);
    )*};
}

opaque! {
    /// An error.
    RawError
    /// An event: work that is done at some time.
    RawEvent
    /// A client.
    RawClient
    /// A device of a client.
    RawDevice
    /// The description of a device.
    RawDeviceDescription
    /// A value on a device.
    RawBuffer
    /// A compiled program.
    RawExecutable
    /// A compiled program that is loaded on devices.
    RawLoadedExecutable
}

/// The beginning of the plugin's function table.
#[repr(C)]
pub(super) struct Api {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut c_void,
    pub(super) version: ApiVersion,
    /// The functions follow; `struct_size` says how many.
    pub(super) functions: [*const c_void; 0],
}

/// The version of a plugin's interface.
#[repr(C)]
pub(super) struct ApiVersion {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut c_void,
    pub(super) major: i32,
    pub(super) minor: i32,
}

/// A function of the table, by its struct of arguments.
///
/// # Safety
/// `SLOT` is the position of the function whose arguments have this layout.
pub(super) unsafe trait FunctionArguments {
    /// Position in the table.
    const SLOT: usize;
    /// The function's name in C.
    const NAME: &str;
}

macro_rules! structs {
    ($($c_name:literal $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[doc = concat!("`", $c_name, "`")]
        #[repr(C)]
        pub(super) struct $name {
            pub(super) struct_size: usize,
            pub(super) extension_start: *mut c_void,
            $(pub(super) $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                // SAFETY: every field is a number, a bool, a raw pointer, an optional function pointer, or a struct or
                // union of these; zeros are a value of each.
                let mut zeroed: $name = unsafe { std::mem::zeroed() };
                let ends = [
                    std::mem::offset_of!($name, extension_start) + size_of::<*mut c_void>(),
                    $(std::mem::offset_of!($name, $field) + size_of::<$type>(),)*
                ];
                zeroed.struct_size = ends[ends.len() - 1];
                zeroed
            }
        }
    )*};
}

macro_rules! functions {
    ($($slot:literal $c_name:literal $name:ident { $($fields:tt)* })*) => {
        structs! { $($c_name $name { $($fields)* })* }
        $(
            // SAFETY: slots and layouts are those of the header of version 0.114; `tests` compares the layouts.
            unsafe impl FunctionArguments for $name {
                const SLOT: usize = $slot;
                const NAME: &str = $c_name;
            }
        )*
    };
}

structs! {
    "PJRT_Program" Program {
        code: *const u8,
        code_size: usize,
        format: *const u8,
        format_size: usize,
    }
    "PJRT_ExecuteOptions" ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: i32,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *mut c_void,
        num_tasks: usize,
        task_ids: *mut c_void,
        incarnation_ids: *mut c_void,
        multi_slice_config: *mut c_void,
        use_major_to_minor_data_layout_for_callbacks: bool,
        hlo_output_callbacks: *mut c_void,
        num_hlo_output_callbacks: usize,
    }
    "PJRT_NamedValue" NamedValue {
        name: *const u8,
        name_size: usize,
        kind: u32,
        data: NamedValueData,
        value_size: usize,
    }
    "PJRT_Buffer_MemoryLayout_Tiled" TiledLayout {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }
    "PJRT_Buffer_MemoryLayout" MemoryLayout {
        tiled: TiledLayout,
        kind: u32,
    }
}

functions! {
    0 "PJRT_Error_Destroy" ErrorDestroy { error: *mut RawError }
    1 "PJRT_Error_Message" ErrorMessage { error: *mut RawError, message: *const u8, message_size: usize }
    2 "PJRT_Error_GetCode" ErrorGetCode { error: *mut RawError, code: u32 }
    3 "PJRT_Plugin_Initialize" PluginInitialize {}
    4 "PJRT_Plugin_Attributes" PluginAttributes { attributes: *const NamedValue, num_attributes: usize }
    5 "PJRT_Event_Destroy" EventDestroy { event: *mut RawEvent }
    6 "PJRT_Event_IsReady" EventIsReady { event: *mut RawEvent, is_ready: bool }
    8 "PJRT_Event_Await" EventAwait { event: *mut RawEvent }
    10 "PJRT_Client_Create" ClientCreate {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut RawClient,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    11 "PJRT_Client_Destroy" ClientDestroy { client: *mut RawClient }
    12 "PJRT_Client_PlatformName" ClientPlatformName {
        client: *mut RawClient,
        platform_name: *const u8,
        platform_name_size: usize,
    }
    13 "PJRT_Client_ProcessIndex" ClientProcessIndex { client: *mut RawClient, process_index: i32 }
    14 "PJRT_Client_PlatformVersion" ClientPlatformVersion {
        client: *mut RawClient,
        platform_version: *const u8,
        platform_version_size: usize,
    }
    16 "PJRT_Client_AddressableDevices" ClientAddressableDevices {
        client: *mut RawClient,
        addressable_devices: *const *mut RawDevice,
        num_addressable_devices: usize,
    }
    20 "PJRT_Client_Compile" ClientCompile {
        client: *mut RawClient,
        program: *const Program,
        compile_options: *const u8,
        compile_options_size: usize,
        executable: *mut RawLoadedExecutable,
    }
    22 "PJRT_Client_BufferFromHostBuffer" ClientBufferFromHostBuffer {
        client: *mut RawClient,
        data: *const c_void,
        kind: u32,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: u32,
        device: *mut RawDevice,
        memory: *mut c_void,
        device_layout: *const MemoryLayout,
        done_with_host_buffer: *mut RawEvent,
        buffer: *mut RawBuffer,
    }
    23 "PJRT_DeviceDescription_Id" DeviceDescriptionId {
        device_description: *mut RawDeviceDescription,
        id: i32,
    }
    26 "PJRT_DeviceDescription_Kind" DeviceDescriptionKind {
        device_description: *mut RawDeviceDescription,
        device_kind: *const u8,
        device_kind_size: usize,
    }
    27 "PJRT_DeviceDescription_DebugString" DeviceDescriptionDebugString {
        device_description: *mut RawDeviceDescription,
        debug_string: *const u8,
        debug_string_size: usize,
    }
    29 "PJRT_Device_GetDescription" DeviceGetDescription {
        device: *mut RawDevice,
        device_description: *mut RawDeviceDescription,
    }
    34 "PJRT_Device_MemoryStats" DeviceMemoryStats {
        device: *mut RawDevice,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        bytes_reserved: i64,
        bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool,
        pool_bytes: i64,
        pool_bytes_is_set: bool,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: bool,
        peak_allocated_bytes: i64,
        peak_allocated_bytes_is_set: bool,
    }
    40 "PJRT_Executable_Destroy" ExecutableDestroy { executable: *mut RawExecutable }
    44 "PJRT_Executable_NumOutputs" ExecutableNumOutputs {
        executable: *mut RawExecutable,
        num_outputs: usize,
    }
    49 "PJRT_Executable_Serialize" ExecutableSerialize {
        executable: *mut RawExecutable,
        serialized_bytes: *const u8,
        serialized_bytes_size: usize,
        serialized_executable: *mut c_void,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    }
    50 "PJRT_LoadedExecutable_Destroy" LoadedExecutableDestroy { executable: *mut RawLoadedExecutable }
    51 "PJRT_LoadedExecutable_GetExecutable" LoadedExecutableGetExecutable {
        loaded_executable: *mut RawLoadedExecutable,
        executable: *mut RawExecutable,
    }
    52 "PJRT_LoadedExecutable_AddressableDevices" LoadedExecutableAddressableDevices {
        executable: *mut RawLoadedExecutable,
        addressable_devices: *const *mut RawDevice,
        num_addressable_devices: usize,
    }
    55 "PJRT_LoadedExecutable_Execute" LoadedExecutableExecute {
        executable: *mut RawLoadedExecutable,
        options: *const ExecuteOptions,
        argument_lists: *const *const *mut RawBuffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut RawBuffer,
        device_complete_events: *mut *mut RawEvent,
        execute_device: *mut RawDevice,
    }
    56 "PJRT_Executable_DeserializeAndLoad" ExecutableDeserializeAndLoad {
        client: *mut RawClient,
        serialized_executable: *const u8,
        serialized_executable_size: usize,
        loaded_executable: *mut RawLoadedExecutable,
        overridden_serialized_compile_options: *mut c_void,
        overridden_serialized_compile_options_size: usize,
        load_options: *mut c_void,
    }
    58 "PJRT_Buffer_Destroy" BufferDestroy { buffer: *mut RawBuffer }
    63 "PJRT_Buffer_GetMemoryLayout" BufferGetMemoryLayout { buffer: *mut RawBuffer, layout: MemoryLayout }
    64 "PJRT_Buffer_OnDeviceSizeInBytes" BufferOnDeviceSizeInBytes {
        buffer: *mut RawBuffer,
        on_device_size_in_bytes: usize,
    }
    68 "PJRT_Buffer_IsDeleted" BufferIsDeleted { buffer: *mut RawBuffer, is_deleted: bool }
    69 "PJRT_Buffer_CopyToDevice" BufferCopyToDevice {
        buffer: *mut RawBuffer,
        dst_device: *mut RawDevice,
        dst_buffer: *mut RawBuffer,
    }
    70 "PJRT_Buffer_ToHostBuffer" BufferToHostBuffer {
        src: *mut RawBuffer,
        host_layout: *const MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut RawEvent,
    }
    71 "PJRT_Buffer_IsOnCpu" BufferIsOnCpu { buffer: *mut RawBuffer, is_on_cpu: bool }
    72 "PJRT_Buffer_ReadyEvent" BufferReadyEvent { buffer: *mut RawBuffer, event: *mut RawEvent }
    73 "PJRT_Buffer_UnsafePointer" BufferUnsafePointer { buffer: *mut RawBuffer, buffer_pointer: usize }
    90 "PJRT_Executable_OutputElementTypes" ExecutableOutputElementTypes {
        executable: *mut RawExecutable,
        output_types: *const u32,
        num_output_types: usize,
    }
    91 "PJRT_Executable_OutputDimensions" ExecutableOutputDimensions {
        executable: *mut RawExecutable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    96 "PJRT_Executable_GetCompiledMemoryStats" ExecutableGetCompiledMemoryStats {
        executable: *mut RawExecutable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
        total_size_in_bytes: i64,
        total_allocation_bytes: i64,
        indefinite_allocations: i64,
        peak_unpadded_heap_bytes: i64,
    }
}

/// The value of an option; its kind is in [`NamedValue`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union NamedValueData {
    pub(super) string: *const u8,
    pub(super) int: i64,
    pub(super) ints: *const i64,
    pub(super) float: f32,
    pub(super) bool: bool,
}

/// The kinds of [`NamedValue`].
pub(super) mod value_kind {
    pub(in super::super) const STRING: u32 = 0;
    pub(in super::super) const INT: u32 = 1;
    pub(in super::super) const INTS: u32 = 2;
    pub(in super::super) const FLOAT: u32 = 3;
    pub(in super::super) const BOOL: u32 = 4;
}

/// The codes of errors that have a kind of their own in autobwd.
pub(super) mod code {
    pub(in super::super) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(in super::super) const UNIMPLEMENTED: u32 = 12;
}

/// The plugin copies the host's data before an upload returns.
pub(super) const COPY_DURING_CALL: u32 = 0;

/// The layout of a host buffer is given as the order of its dimensions, minor to major.
pub(super) const TILED: u32 = 0;
