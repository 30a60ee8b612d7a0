//! Planes become blocks of channels, and blocks become planes.

use super::*;

/// Planes `stride` elements apart.
fn planes<X>(data: &[X], channels: usize, pixels: usize, stride: usize) -> Strided<'_, X> {
    Strided { mat: Mat { data, rows: channels, cols: pixels, transposed: false }, stride }
}

/// Elements `X`, which are widened.
fn check_blocks_of<X: Factor<Sum: TestElement>>() -> Result<()> {
    for channels in 0..=CHANNEL_BLOCK {
        for pixels in 0..=35 {
            let stride = pixels + channels % 3;
            let data: Vec<X> =
                numbers::<X::Sum>((channels + 1) * stride, 1).into_iter().map(X::rounded).collect();
            let mut block = numbers::<X::Sum>(pixels * CHANNEL_BLOCK, 2);
            interleave_channels(planes(&data, channels, pixels, stride), &mut block)?;
            for (i, found) in block.iter().enumerate() {
                let (pixel, channel) = (i / CHANNEL_BLOCK, i % CHANNEL_BLOCK);
                let is_given = channel < channels;
                let expected = if is_given { data[channel * stride + pixel].widened() } else { X::Sum::ZERO };
                assert_eq!(*found, expected, "{channels} channels, {pixels} pixels");
            }
        }
    }
    Ok(())
}

fn check_planes<T: TestElement>() -> Result<()> {
    for channels in 0..=CHANNEL_BLOCK {
        for pixels in 0..=35 {
            let block = numbers::<T>(pixels * CHANNEL_BLOCK, 2);
            // What follows the pixels of a plane stays.
            let (cols, before) = (pixels + 3, numbers::<T>((channels + 1) * (pixels + 3), 3));
            let mut out = before.clone();
            if channels > 0 && pixels > 0 {
                written(&mut out, cols, [channels, pixels], |out| separate_channels(&block, out))?;
            }
            for (i, found) in out.iter().enumerate() {
                let (channel, pixel) = (i / cols, i % cols);
                let is_written = channel < channels && pixel < pixels;
                let expected = if is_written { block[pixel * CHANNEL_BLOCK + channel] } else { before[i] };
                assert_eq!(*found, expected, "{channels} channels, {pixels} pixels");
            }
        }
    }
    Ok(())
}

#[test]
fn channels_become_blocks_and_planes() -> Result<()> {
    check_blocks_of::<f32>()?;
    check_blocks_of::<f64>()?;
    check_blocks_of::<half::bf16>()?;
    check_blocks_of::<half::f16>()?;
    check_planes::<f32>()?;
    check_planes::<f64>()?;
    let mut out = vec![7.0_f32; 17 * CHANNEL_BLOCK];
    let data = numbers::<f32>(34, 1);
    // Too many channels, channels outside of the slice, rows that overlap, other pixels.
    for (channels, pixels, stride, len) in [
        (17, 1, 1, 16),
        (3, 12, 12, 192),
        (2, 3, 2, 48),
        (2, 2, 2, 31),
        (2, 2, 2, 33),
        (0, usize::MAX, usize::MAX, 0),
        (2, 1, usize::MAX, 16),
    ] {
        let planes = planes(&data, channels, pixels, stride);
        assert!(
            interleave_channels(planes, &mut out[..len]).is_err(),
            "{channels} channels, {pixels} pixels"
        );
    }
    assert!(interleave_channels(planes(&data, 2, 2, 2).t(), &mut out[..32]).is_err(), "transposed");
    assert!(out.iter().all(|x| *x == 7.0));
    let block = vec![1.0_f32; 17 * CHANNEL_BLOCK];
    for (channels, pixels, len) in [(17, 1, 16), (16, 2, 31), (16, 2, 48)] {
        let found =
            written(&mut out, pixels, [channels, pixels], |out| separate_channels(&block[..len], out));
        assert!(found.is_err(), "{channels} channels, {pixels} pixels");
    }
    assert!(out.iter().all(|x| *x == 7.0));
    Ok(())
}
