//! Types of elements of at most 8 bits: integers are held in int32, floating point numbers in float32.

mod graphs;

use autobwd::{DType, Result};
use autobwd_onnx::read_tensor;
use graphs::proto::{TensorProto, tensor_proto::DataType};
use prost::Message;

fn bytes(ty: DataType, count: i64, raw: &[u8]) -> Vec<u8> {
    let raw_data = Some(raw.to_vec().into());
    TensorProto { dims: vec![count], data_type: Some(ty as i32), raw_data, ..TensorProto::default() }
        .encode_to_vec()
}

fn floats(ty: DataType, count: i64, raw: &[u8]) -> Result<Vec<f64>> {
    let read = read_tensor(&bytes(ty, count, raw))?.tensor;
    assert_eq!(read.dtype(), DType::F32);
    Ok(read.to_f64s())
}

#[test]
fn integers_are_packed_from_the_lowest_bits() -> Result<()> {
    for (ty, count, raw, expected) in [
        (DataType::Int4, 3, &[0x81, 0x07][..], &[1, -8, 7][..]),
        (DataType::Uint4, 3, &[0x81, 0x0f], &[1, 8, 15]),
        (DataType::Int2, 5, &[0b11_10_01_00, 0b01], &[0, 1, -2, -1, 1]),
        (DataType::Uint2, 4, &[0b11_10_01_00], &[0, 1, 2, 3]),
    ] {
        let read = read_tensor(&bytes(ty, count, raw))?.tensor;
        assert_eq!(read.slice::<i32>()?, expected, "{ty:?}");
        // As numbers of the field for integers, a byte each.
        let int32_data = raw.iter().map(|byte| i32::from(*byte)).collect();
        let dims = vec![count];
        let message = TensorProto { dims, data_type: Some(ty as i32), int32_data, ..TensorProto::default() };
        assert_eq!(read_tensor(&message.encode_to_vec())?.tensor, read);
    }
    let e = read_tensor(&bytes(DataType::Int4, 5, &[0, 0])).unwrap_err().to_string();
    assert!(e.contains("4 elements do not fill shape [5]"), "{e}");
    Ok(())
}

#[test]
fn floating_point_numbers_of_eight_bits_are_exact() -> Result<()> {
    let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
    for (ty, raw, expected) in [
        (DataType::Float8e4m3fn, [0x38, 0x7e, 0x01, 0xb9], [1.0, 448.0, power(-9), -1.125]),
        (DataType::Float8e4m3fnuz, [0x40, 0x7f, 0x01, 0xc1], [1.0, 240.0, power(-10), -1.125]),
        (DataType::Float8e5m2, [0x3c, 0x7b, 0x01, 0xbd], [1.0, 57344.0, power(-16), -1.25]),
        (DataType::Float8e5m2fnuz, [0x40, 0x7f, 0x01, 0xc1], [1.0, 57344.0, power(-17), -1.25]),
        (DataType::Float8e8m0, [0x7f, 0x80, 0x00, 0xfe], [1.0, 2.0, power(-127), power(127)]),
    ] {
        assert_eq!(floats(ty, 4, &raw)?, expected, "{ty:?}");
    }
    assert_eq!(floats(DataType::Float4e2m1, 4, &[0x72, 0x91])?, [1.0, 6.0, 0.5, -0.5]);
    for (ty, code) in [
        (DataType::Float8e4m3fn, 0xff),
        (DataType::Float8e4m3fnuz, 0x80),
        (DataType::Float8e5m2, 0x7d),
        (DataType::Float8e5m2fnuz, 0x80),
        (DataType::Float8e8m0, 0xff),
    ] {
        assert!(floats(ty, 1, &[code])?[0].is_nan(), "{ty:?}");
    }
    assert_eq!(floats(DataType::Float8e5m2, 2, &[0x7c, 0xfc])?, [f64::INFINITY, f64::NEG_INFINITY]);
    Ok(())
}
