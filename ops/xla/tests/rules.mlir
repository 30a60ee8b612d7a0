// Rules: accuracy
    // accuracy
    %3 = stablehlo.broadcast_in_dim %v2, dims = [0] : (tensor<5xi64>) -> tensor<5x2xi64>
    %4 = stablehlo.compare EQ, %v1, %3, SIGNED : (tensor<5x2xi64>, tensor<5x2xi64>) -> tensor<5x2xi1>
    %5 = stablehlo.constant dense<false> : tensor<i1>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.or across dimensions = [1] : (tensor<5x2xi1>, tensor<i1>) -> tensor<5xi1>
    %7 = stablehlo.convert %6 : (tensor<5xi1>) -> tensor<5xi32>
    %8 = stablehlo.constant dense<0> : tensor<i32>
    %v4 = stablehlo.reduce(%7 init: %8) applies stablehlo.add across dimensions = [0] : (tensor<5xi32>, tensor<i32>) -> tensor<i32>
    %10 = stablehlo.convert %v4 : (tensor<i32>) -> tensor<f32>
    %11 = stablehlo.constant dense<0x40A00000> : tensor<f32>
    %v3 = stablehlo.divide %10, %11 : tensor<f32>
    %v5 = stablehlo.constant dense<5> : tensor<i32>
    return %v3, %v4, %v5 : tensor<f32>, tensor<i32>, tensor<i32>

// Rules: affine_grid
    // affine_grid
    %1 = stablehlo.iota dim = 1 : tensor<1x4xf64>
    %2 = stablehlo.constant dense<0x3FE5555555555555> : tensor<1x4xf64>
    %3 = stablehlo.multiply %1, %2 : tensor<1x4xf64>
    %4 = stablehlo.constant dense<0x3FF0000000000000> : tensor<1x4xf64>
    %5 = stablehlo.subtract %3, %4 : tensor<1x4xf64>
    %6 = stablehlo.convert %5 : (tensor<1x4xf64>) -> tensor<1x4xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x4xf32>) -> tensor<4x1xf32>
    %8 = stablehlo.iota dim = 0 : tensor<1x4xf64>
    %9 = stablehlo.constant dense<0x0000000000000000> : tensor<1x4xf64>
    %10 = stablehlo.multiply %8, %9 : tensor<1x4xf64>
    %11 = stablehlo.constant dense<0x3FF0000000000000> : tensor<1x4xf64>
    %12 = stablehlo.subtract %10, %11 : tensor<1x4xf64>
    %13 = stablehlo.convert %12 : (tensor<1x4xf64>) -> tensor<1x4xf32>
    %14 = stablehlo.reshape %13 : (tensor<1x4xf32>) -> tensor<4x1xf32>
    %15 = stablehlo.constant dense<0x3F800000> : tensor<4x1xf32>
    %16 = stablehlo.concatenate %7, %14, %15, dim = 1 : (tensor<4x1xf32>, tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x3xf32>
    %17 = stablehlo.dot_general %v0, %16, contracting_dims = [2] x [1] : (tensor<1x2x3xf32>, tensor<4x3xf32>) -> tensor<1x2x4xf32>
    %18 = stablehlo.transpose %17, dims = [0, 2, 1] : (tensor<1x2x4xf32>) -> tensor<1x4x2xf32>
    %v1 = stablehlo.reshape %18 : (tensor<1x4x2xf32>) -> tensor<1x1x4x2xf32>
    return %v1 : tensor<1x1x4x2xf32>

// Rules: arg_max
    // arg_max
    %1 = stablehlo.compare NE, %v0, %v0, FLOAT : (tensor<2x5xf32>, tensor<2x5xf32>) -> tensor<2x5xi1>
    %2 = stablehlo.constant dense<0x7F800000> : tensor<2x5xf32>
    %3 = stablehlo.select %1, %2, %v0 : tensor<2x5xi1>, tensor<2x5xf32>
    %4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.maximum across dimensions = [1] : (tensor<2x5xf32>, tensor<f32>) -> tensor<2xf32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<2xf32>) -> tensor<2x5xf32>
    %7 = stablehlo.compare EQ, %3, %6, FLOAT : (tensor<2x5xf32>, tensor<2x5xf32>) -> tensor<2x5xi1>
    %8 = stablehlo.constant dense<false> : tensor<i1>
    %9 = stablehlo.reduce(%1 init: %8) applies stablehlo.or across dimensions = [1] : (tensor<2x5xi1>, tensor<i1>) -> tensor<2xi1>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0] : (tensor<2xi1>) -> tensor<2x5xi1>
    %11 = stablehlo.select %10, %1, %7 : tensor<2x5xi1>, tensor<2x5xi1>
    %12 = stablehlo.iota dim = 1 : tensor<2x5xi64>
    %13 = stablehlo.constant dense<5> : tensor<2x5xi64>
    %14 = stablehlo.select %11, %12, %13 : tensor<2x5xi1>, tensor<2x5xi64>
    %15 = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %v1 = stablehlo.reduce(%14 init: %15) applies stablehlo.minimum across dimensions = [1] : (tensor<2x5xi64>, tensor<i64>) -> tensor<2xi64>
    return %v1 : tensor<2xi64>

// Rules: arg_min
    // arg_min
    %1 = stablehlo.compare NE, %v0, %v0, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %2 = stablehlo.constant dense<0x7F800000> : tensor<4xf32>
    %3 = stablehlo.select %1, %2, %v0 : tensor<4xi1>, tensor<4xf32>
    %4 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.minimum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %7 = stablehlo.compare EQ, %3, %6, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %8 = stablehlo.iota dim = 0 : tensor<4xi64>
    %9 = stablehlo.constant dense<4> : tensor<4xi64>
    %10 = stablehlo.select %7, %8, %9 : tensor<4xi1>, tensor<4xi64>
    %11 = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %v1 = stablehlo.reduce(%10 init: %11) applies stablehlo.minimum across dimensions = [0] : (tensor<4xi64>, tensor<i64>) -> tensor<i64>
    return %v1 : tensor<i64>

// Rules: argsort
    // argsort
    %1 = stablehlo.iota dim = 1 : tensor<2x4xi64>
    %7:2 = "stablehlo.sort"(%v0, %1) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%2: tensor<i32>, %3: tensor<i32>, %4: tensor<i64>, %5: tensor<i64>):
      %6 = stablehlo.compare GT, %2, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<2x4xi32>, tensor<2x4xi64>) -> (tensor<2x4xi32>, tensor<2x4xi64>)
    return %7#0, %7#1 : tensor<2x4xi32>, tensor<2x4xi64>

// Rules: assign_value
    // assign_value
    %v0 = stablehlo.constant dense<[-1, 2]> : tensor<2xi32>
    return %v0 : tensor<2xi32>

// Rules: bilinear_interp_v2_grad
    // bilinear_interp_v2
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x1x3x4xf32>
    // bilinear_interp_v2_grad
    return %v1.GRAD : tensor<2x1x3x4xf32>

// Rules: bilinear_interp_v2
    // bilinear_interp_v2
    return %v0 : tensor<2x1x3x4xf32>

// Rules: bitwise_and
    // bitwise_and
    %v2 = stablehlo.and %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: bitwise_not
    // bitwise_not
    %v1 = stablehlo.not %v0 : tensor<ui8>
    return %v1 : tensor<ui8>

// Rules: bitwise_or
    // bitwise_or
    %v2 = stablehlo.or %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: bitwise_xor
    // bitwise_xor
    %v2 = stablehlo.xor %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: bmm_grad
    // bmm
    %v2 = stablehlo.dot_general %v0, %v1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<5x2x3xf32>, tensor<5x3x4xf32>) -> tensor<5x2x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x2x4xf32>
    // bmm_grad
    %4 = stablehlo.transpose %v1, dims = [0, 2, 1] : (tensor<5x3x4xf32>) -> tensor<5x4x3xf32>
    %v0.GRAD = stablehlo.dot_general %v2.GRAD, %4, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<5x2x4xf32>, tensor<5x4x3xf32>) -> tensor<5x2x3xf32>
    %6 = stablehlo.transpose %v0, dims = [0, 2, 1] : (tensor<5x2x3xf32>) -> tensor<5x3x2xf32>
    %v1.GRAD = stablehlo.dot_general %6, %v2.GRAD, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<5x3x2xf32>, tensor<5x2x4xf32>) -> tensor<5x3x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<5x2x3xf32>, tensor<5x3x4xf32>

// Rules: bmm
    // bmm
    %v2 = stablehlo.dot_general %v0, %v1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<5x2x3xf32>, tensor<5x3x4xf32>) -> tensor<5x2x4xf32>
    return %v2 : tensor<5x2x4xf32>

// Rules: c_allgather
    // c_allgather
    return %v0 : tensor<4xi64>

// Rules: c_allreduce_sum
    // c_allreduce_sum
    return %v0 : tensor<f32>

// Rules: c_broadcast
    // c_broadcast
    return %v0 : tensor<i64>

// Rules: c_reduce_sum
    // c_reduce_sum
    return %v0 : tensor<3xi64>

// Rules: c_reducescatter
    // c_reducescatter
    return %v0 : tensor<4xi64>

// Rules: channel_shuffle_grad
    // channel_shuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x6x0x4xf32>) -> tensor<2x3x2x0x1x1xf32>
    %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3, 4, 5] : (tensor<2x3x2x0x1x1xf32>) -> tensor<2x2x3x0x1x1xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x2x3x0x1x1xf32>) -> tensor<2x6x0x4xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x6x0x4xf32>
    // channel_shuffle_grad
    %5 = stablehlo.reshape %v1.GRAD : (tensor<2x6x0x4xf32>) -> tensor<2x2x3x0x1x1xf32>
    %6 = stablehlo.transpose %5, dims = [0, 2, 1, 3, 4, 5] : (tensor<2x2x3x0x1x1xf32>) -> tensor<2x3x2x0x1x1xf32>
    %v0.GRAD = stablehlo.reshape %6 : (tensor<2x3x2x0x1x1xf32>) -> tensor<2x6x0x4xf32>
    return %v0.GRAD : tensor<2x6x0x4xf32>

// Rules: channel_shuffle
    // channel_shuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x6x0x4xf32>) -> tensor<2x3x2x0x1x1xf32>
    %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3, 4, 5] : (tensor<2x3x2x0x1x1xf32>) -> tensor<2x2x3x0x1x1xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x2x3x0x1x1xf32>) -> tensor<2x6x0x4xf32>
    return %v1 : tensor<2x6x0x4xf32>

// Rules: concat_grad
    // concat
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5xf32>
    // concat_grad
    return %v1.GRAD : tensor<5xf32>

// Rules: concat
    // concat
    return %v0 : tensor<5xf32>

// Rules: conv2d_grad
    // conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x4x4x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x4x4x4xf32>
    // conv2d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x4xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<4x3x2x1xf32>
    return %v0.GRAD, %v1.GRAD : tensor<0x3x5x4xf32>, tensor<4x3x2x1xf32>

// Rules: conv2d
    // conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x4x4x4xf32>
    return %v2 : tensor<0x4x4x4xf32>

// Rules: conv2d_transpose_grad
    // conv2d_transpose
    %3 = stablehlo.constant dense<0x00000000> : tensor<0x4x6x2xf32>
    %4 = stablehlo.broadcast_in_dim %v2, dims = [1] : (tensor<4xf32>) -> tensor<0x4x6x2xf32>
    %v3 = stablehlo.add %3, %4 : tensor<0x4x6x2xf32>
    // fill_any_like
    %v3.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x4x6x2xf32>
    // conv2d_transpose_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x2xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<3x4x2x1xf32>
    // reduce_sum
    %9 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v2.GRAD = stablehlo.reduce(%v3.GRAD init: %9) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<0x4x6x2xf32>, tensor<f32>) -> tensor<4xf32>
    return %v0.GRAD, %v1.GRAD, %v2.GRAD : tensor<0x3x5x2xf32>, tensor<3x4x2x1xf32>, tensor<4xf32>

// Rules: conv2d_transpose
    // conv2d_transpose
    %3 = stablehlo.constant dense<0x00000000> : tensor<0x4x6x2xf32>
    %4 = stablehlo.broadcast_in_dim %v2, dims = [1] : (tensor<4xf32>) -> tensor<0x4x6x2xf32>
    %v3 = stablehlo.add %3, %4 : tensor<0x4x6x2xf32>
    return %v3 : tensor<0x4x6x2xf32>

// Rules: conv3d_grad
    // conv3d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x2x2x2x2xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x2x2x2x2xf32>
    // conv3d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x2x3x3x3xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<2x2x2x2x2xf32>
    return %v0.GRAD, %v1.GRAD : tensor<0x2x3x3x3xf32>, tensor<2x2x2x2x2xf32>

// Rules: conv3d
    // conv3d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x2x2x2x2xf32>
    return %v2 : tensor<0x2x2x2x2xf32>

// Rules: cumsum_grad
    // cumsum
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x3xf32>
    // cumsum_grad
    %2 = stablehlo.reverse %v1.GRAD, dims = [0] : tensor<0x3xf32>
    %v0.GRAD = stablehlo.reverse %2, dims = [0] : tensor<0x3xf32>
    return %v0.GRAD : tensor<0x3xf32>

// Rules: cumsum
    // cumsum
    return %v0 : tensor<0x3xf32>

// Rules: depthwise_conv2d_grad
    // depthwise_conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x1xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x3x4x1xf32>
    // depthwise_conv2d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x4xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<3x1x2x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<0x3x5x4xf32>, tensor<3x1x2x4xf32>

// Rules: depthwise_conv2d
    // depthwise_conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x1xf32>
    return %v2 : tensor<0x3x4x1xf32>

// Rules: dot_grad
    // dot
    %2 = stablehlo.multiply %v0, %v1 : tensor<3xf32>
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v2 = stablehlo.reduce(%2 init: %3) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // dot_grad
    %6 = stablehlo.broadcast_in_dim %v2.GRAD, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %v0.GRAD = stablehlo.multiply %6, %v1 : tensor<3xf32>
    %v1.GRAD = stablehlo.multiply %6, %v0 : tensor<3xf32>
    return %v0.GRAD, %v1.GRAD : tensor<3xf32>, tensor<3xf32>

// Rules: dot
    // dot
    %2 = stablehlo.multiply %v0, %v1 : tensor<3xf32>
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v2 = stablehlo.reduce(%2 init: %3) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
    return %v2 : tensor<f32>

// Rules: dropout
    // dropout
    %v2 = stablehlo.constant dense<1> : tensor<4x5xui8>
    %2 = stablehlo.constant dense<0x3F400000> : tensor<4x5xf32>
    %v1 = stablehlo.multiply %v0, %2 : tensor<4x5xf32>
    return %v1, %v2 : tensor<4x5xf32>, tensor<4x5xui8>

// Rules: elementwise_floordiv
    // elementwise_floordiv
    %2 = stablehlo.divide %v0, %v1 : tensor<2xf32>
    %v2 = stablehlo.floor %2 : tensor<2xf32>
    return %v2 : tensor<2xf32>

// Rules: elementwise_mod
    // elementwise_mod
    %2 = stablehlo.remainder %v0, %v1 : tensor<1xi32>
    %3 = stablehlo.constant dense<0> : tensor<1xi32>
    %4 = stablehlo.compare NE, %2, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %5 = stablehlo.compare LT, %2, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %6 = stablehlo.compare LT, %v1, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %7 = stablehlo.xor %5, %6 : tensor<1xi1>
    %8 = stablehlo.and %4, %7 : tensor<1xi1>
    %9 = stablehlo.add %2, %v1 : tensor<1xi32>
    %v2 = stablehlo.select %8, %9, %2 : tensor<1xi1>, tensor<1xi32>
    return %v2 : tensor<1xi32>

// Rules: elementwise_mod_grad
    // elementwise_mod
    %2 = stablehlo.remainder %v0, %v1 : tensor<2xf32>
    %3 = stablehlo.constant dense<0x00000000> : tensor<2xf32>
    %4 = stablehlo.compare NE, %2, %3, FLOAT : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %5 = stablehlo.compare LT, %2, %3, FLOAT : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %6 = stablehlo.compare LT, %v1, %3, FLOAT : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    %7 = stablehlo.xor %5, %6 : tensor<2xi1>
    %8 = stablehlo.and %4, %7 : tensor<2xi1>
    %9 = stablehlo.add %2, %v1 : tensor<2xf32>
    %v2 = stablehlo.select %8, %9, %2 : tensor<2xi1>, tensor<2xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2xf32>
    // elementwise_mod_grad
    %12 = stablehlo.divide %v0, %v1 : tensor<2xf32>
    %13 = stablehlo.floor %12 : tensor<2xf32>
    %14 = stablehlo.multiply %v2.GRAD, %13 : tensor<2xf32>
    %v1.GRAD = stablehlo.negate %14 : tensor<2xf32>
    return %v2.GRAD, %v1.GRAD : tensor<2xf32>, tensor<2xf32>

// Rules: expand_as_v2_grad
    // expand_as_v2
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // expand_as_v2_grad
    return %v2.GRAD : tensor<f32>

// Rules: expand_as_v2
    // expand_as_v2
    return %v0 : tensor<f32>

// Rules: expand_v2_grad
    // expand_v2
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
    // expand_v2_grad
    return %v1.GRAD : tensor<2x3xf32>

// Rules: expand_v2
    // expand_v2
    return %v0 : tensor<2x3xf32>

// Rules: eye
    // eye
    %0 = stablehlo.iota dim = 0 : tensor<3x3xi32>
    %1 = stablehlo.iota dim = 1 : tensor<3x3xi32>
    %v0 = stablehlo.compare EQ, %0, %1, SIGNED : (tensor<3x3xi32>, tensor<3x3xi32>) -> tensor<3x3xi1>
    return %v0 : tensor<3x3xi1>

// Rules: fill_any_like
    // fill_any_like
    %v1 = stablehlo.constant dense<-1> : tensor<i32>
    return %v1 : tensor<i32>

// Rules: fill_constant
    // fill_constant
    %v0 = stablehlo.constant dense<true> : tensor<3xi1>
    return %v0 : tensor<3xi1>

// Rules: fill_constant_batch_size_like
    // fill_constant_batch_size_like
    %v1 = stablehlo.constant dense<3> : tensor<7x3xi32>
    return %v1 : tensor<7x3xi32>

// Rules: fill_zeros_like
    // fill_zeros_like
    %v1 = stablehlo.constant dense<0> : tensor<3xi64>
    return %v1 : tensor<3xi64>

// Rules: flatten_contiguous_range_grad
    // flatten_contiguous_range
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
    // flatten_contiguous_range_grad
    return %v1.GRAD : tensor<2x3xf32>

// Rules: flatten_contiguous_range
    // flatten_contiguous_range
    return %v0 : tensor<2x3xf32>

// Rules: flip
    // flip
    return %v0 : tensor<f32>

// Rules: fold
    // fold
    %1 = stablehlo.reshape %v0 : (tensor<0x6x4xf32>) -> tensor<0x1x6x4xf32>
    %2 = stablehlo.slice %1 [0:0, 0:1, 0:1, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %4 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %5 = stablehlo.pad %3, %4, low = [0, 0, 0, 0], high = [0, 0, 1, 2], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %6 = stablehlo.slice %1 [0:0, 0:1, 1:2, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %7 = stablehlo.reshape %6 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %8 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %9 = stablehlo.pad %7, %8, low = [0, 0, 0, 1], high = [0, 0, 1, 1], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %10 = stablehlo.add %5, %9 : tensor<0x1x3x4xf32>
    %11 = stablehlo.slice %1 [0:0, 0:1, 2:3, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %12 = stablehlo.reshape %11 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %13 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %14 = stablehlo.pad %12, %13, low = [0, 0, 0, 2], high = [0, 0, 1, 0], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %15 = stablehlo.add %10, %14 : tensor<0x1x3x4xf32>
    %16 = stablehlo.slice %1 [0:0, 0:1, 3:4, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %17 = stablehlo.reshape %16 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %18 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %19 = stablehlo.pad %17, %18, low = [0, 0, 1, 0], high = [0, 0, 0, 2], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %20 = stablehlo.add %15, %19 : tensor<0x1x3x4xf32>
    %21 = stablehlo.slice %1 [0:0, 0:1, 4:5, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %22 = stablehlo.reshape %21 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %23 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %24 = stablehlo.pad %22, %23, low = [0, 0, 1, 1], high = [0, 0, 0, 1], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %25 = stablehlo.add %20, %24 : tensor<0x1x3x4xf32>
    %26 = stablehlo.slice %1 [0:0, 0:1, 5:6, 0:4] : (tensor<0x1x6x4xf32>) -> tensor<0x1x1x4xf32>
    %27 = stablehlo.reshape %26 : (tensor<0x1x1x4xf32>) -> tensor<0x1x2x2xf32>
    %28 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %29 = stablehlo.pad %27, %28, low = [0, 0, 1, 2], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<0x1x2x2xf32>, tensor<f32>) -> tensor<0x1x3x4xf32>
    %v1 = stablehlo.add %25, %29 : tensor<0x1x3x4xf32>
    return %v1 : tensor<0x1x3x4xf32>

// Rules: frobenius_norm_grad
    // frobenius_norm
    //   of it: square
    %square_0 = stablehlo.multiply %v0, %v0 : tensor<f32>
    //   of it: reduce_sum
    //   of it: fill_any_like
    %fill_any_like_0 = stablehlo.constant dense<0x00000000> : tensor<f32>
    //   of it: equal
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %4 = stablehlo.compare EQ, %square_0, %fill_any_like_0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %5 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %6 = stablehlo.select %4, %5, %3 : tensor<i1>, tensor<f32>
    %7 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %equal_0 = stablehlo.compare NE, %6, %7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    //   of it: fill_any_like
    %fill_any_like_1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    //   of it: where
    %10 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %11 = stablehlo.convert %equal_0 : (tensor<i1>) -> tensor<f32>
    %12 = stablehlo.compare EQ, %11, %10, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %where_0 = stablehlo.select %12, %square_0, %fill_any_like_1 : tensor<i1>, tensor<f32>
    //   of it: sqrt
    %sqrt_0 = stablehlo.sqrt %where_0 : tensor<f32>
    //   of it: fill_any_like
    %fill_any_like_2 = stablehlo.constant dense<0x00000000> : tensor<f32>
    //   of it: where
    %16 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %17 = stablehlo.convert %equal_0 : (tensor<i1>) -> tensor<f32>
    %18 = stablehlo.compare EQ, %17, %16, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v1_0 = stablehlo.select %18, %sqrt_0, %fill_any_like_2 : tensor<i1>, tensor<f32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // frobenius_norm_grad
    %21 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %22 = stablehlo.compare EQ, %v1_0, %21, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %23 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %24 = stablehlo.select %22, %23, %v1_0 : tensor<i1>, tensor<f32>
    %25 = stablehlo.divide %v0, %24 : tensor<f32>
    %v0.GRAD = stablehlo.multiply %v1.GRAD, %25 : tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: gather_grad
    // gather
    %v2 = "stablehlo.gather"(%v0, %v1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x3xf32>
    // gather_grad
    %4 = stablehlo.constant dense<0x00000000> : tensor<4x3xf32>
    %v0.GRAD = "stablehlo.scatter"(%4, %v1, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = stablehlo.add %5, %6 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v0.GRAD : tensor<4x3xf32>

// Rules: gather
    // gather
    %v2 = "stablehlo.gather"(%v0, %v1) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>, indices_are_sorted = false}> : (tensor<5xi64>, tensor<3xi64>) -> tensor<3xi64>
    return %v2 : tensor<3xi64>

// Rules: gather_nd_grad
    // gather_nd
    %2 = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
    %3 = stablehlo.constant dense<0> : tensor<2xi64>
    %4 = stablehlo.compare LT, %v1, %3, SIGNED : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi1>
    %5 = stablehlo.add %v1, %2 : tensor<2xi64>
    %6 = stablehlo.select %4, %5, %v1 : tensor<2xi1>, tensor<2xi64>
    %v2 = "stablehlo.gather"(%v0, %6) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 0>, slice_sizes = array<i64: 1, 1>, indices_are_sorted = false}> : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<f32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // gather_nd_grad
    %9 = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
    %10 = stablehlo.constant dense<0> : tensor<2xi64>
    %11 = stablehlo.compare LT, %v1, %10, SIGNED : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi1>
    %12 = stablehlo.add %v1, %9 : tensor<2xi64>
    %13 = stablehlo.select %11, %12, %v1 : tensor<2xi1>, tensor<2xi64>
    %14 = stablehlo.constant dense<0x00000000> : tensor<2x3xf32>
    %v0.GRAD = "stablehlo.scatter"(%14, %13, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 0>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%15: tensor<f32>, %16: tensor<f32>):
      %17 = stablehlo.add %15, %16 : tensor<f32>
      stablehlo.return %17 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<2xi64>, tensor<f32>) -> tensor<2x3xf32>
    return %v0.GRAD : tensor<2x3xf32>

// Rules: gather_nd
    // gather_nd
    %2 = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
    %3 = stablehlo.constant dense<0> : tensor<2xi64>
    %4 = stablehlo.compare LT, %v1, %3, SIGNED : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi1>
    %5 = stablehlo.add %v1, %2 : tensor<2xi64>
    %6 = stablehlo.select %4, %5, %v1 : tensor<2xi1>, tensor<2xi64>
    %v2 = "stablehlo.gather"(%v0, %6) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 0>, slice_sizes = array<i64: 1, 1>, indices_are_sorted = false}> : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<f32>
    return %v2 : tensor<f32>

// Rules: index_sample_grad
    // index_sample
    %2 = stablehlo.constant dense<0> : tensor<2x0xi64>
    %v2 = stablehlo.convert %2 : (tensor<2x0xi64>) -> tensor<2x0xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x0xf32>
    // index_sample_grad
    %5 = stablehlo.constant dense<0x00000000> : tensor<2x4xf32>
    %6 = stablehlo.iota dim = 0 : tensor<2x0x1xi64>
    %7 = stablehlo.reshape %v1 : (tensor<2x0xi64>) -> tensor<2x0x1xi64>
    %8 = stablehlo.concatenate %6, %7, dim = 2 : (tensor<2x0x1xi64>, tensor<2x0x1xi64>) -> tensor<2x0x2xi64>
    %v0.GRAD = "stablehlo.scatter"(%5, %8, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%9: tensor<f32>, %10: tensor<f32>):
      %11 = stablehlo.add %9, %10 : tensor<f32>
      stablehlo.return %11 : tensor<f32>
    }) : (tensor<2x4xf32>, tensor<2x0x2xi64>, tensor<2x0xf32>) -> tensor<2x4xf32>
    return %v0.GRAD : tensor<2x4xf32>

// Rules: index_sample
    // index_sample
    %2 = stablehlo.constant dense<0> : tensor<2x0xi64>
    %v2 = stablehlo.convert %2 : (tensor<2x0xi64>) -> tensor<2x0xf32>
    return %v2 : tensor<2x0xf32>

// Rules: index_select_grad
    // index_select
    %v2 = "stablehlo.gather"(%v0, %v1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x3xf32>
    // index_select_grad
    %4 = stablehlo.constant dense<0x00000000> : tensor<4x3xf32>
    %v0.GRAD = "stablehlo.scatter"(%4, %v1, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = stablehlo.add %5, %6 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v0.GRAD : tensor<4x3xf32>

// Rules: index_select
    // index_select
    %v2 = "stablehlo.gather"(%v0, %v1) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>, indices_are_sorted = false}> : (tensor<5xi64>, tensor<3xi64>) -> tensor<3xi64>
    return %v2 : tensor<3xi64>

// Rules: kron_grad
    // kron
    %v2 = stablehlo.multiply %v0, %v1 : tensor<f32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // kron_grad
    %v0.GRAD = stablehlo.multiply %v2.GRAD, %v1 : tensor<f32>
    %v1.GRAD = stablehlo.multiply %v2.GRAD, %v0 : tensor<f32>
    return %v0.GRAD, %v1.GRAD : tensor<f32>, tensor<f32>

// Rules: kron
    // kron
    %v2 = stablehlo.multiply %v0, %v1 : tensor<f32>
    return %v2 : tensor<f32>

// Rules: lars_momentum
    // lars_momentum
    %4 = stablehlo.multiply %v0, %v0 : tensor<2x3xf32>
    %5 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %7 = stablehlo.sqrt %6 : tensor<f32>
    %8 = stablehlo.multiply %v1, %v1 : tensor<2x3xf32>
    %9 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %10 = stablehlo.reduce(%8 init: %9) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %11 = stablehlo.sqrt %10 : tensor<f32>
    %12 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %13 = stablehlo.multiply %11, %12 : tensor<f32>
    %14 = stablehlo.constant dense<0x3F000000> : tensor<f32>
    %15 = stablehlo.multiply %7, %14 : tensor<f32>
    %16 = stablehlo.add %13, %15 : tensor<f32>
    %17 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %18 = stablehlo.add %16, %17 : tensor<f32>
    %19 = stablehlo.constant dense<0x3A83126F> : tensor<f32>
    %20 = stablehlo.multiply %7, %19 : tensor<f32>
    %21 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %22 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %23 = stablehlo.divide %20, %18 : tensor<f32>
    %24 = stablehlo.compare GT, %7, %22, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %25 = stablehlo.select %24, %23, %21 : tensor<i1>, tensor<f32>
    %26 = stablehlo.compare GT, %13, %22, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %27 = stablehlo.select %26, %25, %21 : tensor<i1>, tensor<f32>
    %28 = stablehlo.multiply %v3, %27 : tensor<f32>
    %29 = stablehlo.constant dense<0x3F666666> : tensor<2x3xf32>
    %30 = stablehlo.multiply %v2, %29 : tensor<2x3xf32>
    %31 = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
    %32 = stablehlo.multiply %v1, %31 : tensor<2x3xf32>
    %33 = stablehlo.constant dense<0x3F000000> : tensor<2x3xf32>
    %34 = stablehlo.multiply %v0, %33 : tensor<2x3xf32>
    %35 = stablehlo.add %32, %34 : tensor<2x3xf32>
    %36 = stablehlo.broadcast_in_dim %28, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %37 = stablehlo.multiply %35, %36 : tensor<2x3xf32>
    %v5 = stablehlo.add %30, %37 : tensor<2x3xf32>
    %v4 = stablehlo.subtract %v0, %v5 : tensor<2x3xf32>
    return %v4, %v5 : tensor<2x3xf32>, tensor<2x3xf32>

// Rules: linspace
    // linspace
    %3 = stablehlo.reshape %v0 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.convert %3 : (tensor<f32>) -> tensor<f64>
    %5 = stablehlo.reshape %v1 : (tensor<1xf32>) -> tensor<f32>
    %6 = stablehlo.convert %5 : (tensor<f32>) -> tensor<f64>
    %7 = stablehlo.constant dense<0x0000000000000000> : tensor<f64>
    %8 = stablehlo.iota dim = 0 : tensor<1xf64>
    %9 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %10 = stablehlo.multiply %8, %9 : tensor<1xf64>
    %11 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %12 = stablehlo.add %10, %11 : tensor<1xf64>
    %13 = stablehlo.negate %8 : tensor<1xf64>
    %14 = stablehlo.constant dense<0x0000000000000000> : tensor<1xf64>
    %15 = stablehlo.add %13, %14 : tensor<1xf64>
    %16 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %17 = stablehlo.multiply %15, %16 : tensor<1xf64>
    %18 = stablehlo.negate %17 : tensor<1xf64>
    %19 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %20 = stablehlo.add %18, %19 : tensor<1xf64>
    %21 = stablehlo.constant dense<0x3FF0000000000000> : tensor<1xf64>
    %22 = stablehlo.compare LT, %8, %21, FLOAT : (tensor<1xf64>, tensor<1xf64>) -> tensor<1xi1>
    %v3 = stablehlo.select %22, %12, %20 : tensor<1xi1>, tensor<1xf64>
    return %v3 : tensor<1xf64>

// Rules: lookup_table_grad
    // lookup_table
    %2 = stablehlo.reshape %v1 : (tensor<5x1xi64>) -> tensor<5xi64>
    %v2 = "stablehlo.gather"(%v0, %2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x3xf32>
    // lookup_table_grad
    %5 = stablehlo.reshape %v1 : (tensor<5x1xi64>) -> tensor<5xi64>
    %6 = stablehlo.constant dense<0x00000000> : tensor<4x3xf32>
    %v0.GRAD = "stablehlo.scatter"(%6, %5, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%7: tensor<f32>, %8: tensor<f32>):
      %9 = stablehlo.add %7, %8 : tensor<f32>
      stablehlo.return %9 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v0.GRAD : tensor<4x3xf32>

// Rules: lookup_table
    // lookup_table
    %2 = stablehlo.reshape %v1 : (tensor<5x1xi64>) -> tensor<5xi64>
    %v2 = "stablehlo.gather"(%v0, %2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    return %v2 : tensor<5x3xf32>

// Rules: lookup_table_v2_grad
    // lookup_table_v2
    %v2 = "stablehlo.gather"(%v1, %v0) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x3xf32>
    // lookup_table_v2_grad
    %4 = stablehlo.constant dense<0x00000000> : tensor<4x3xf32>
    %v1.GRAD = "stablehlo.scatter"(%4, %v0, %v2.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%5: tensor<f32>, %6: tensor<f32>):
      %7 = stablehlo.add %5, %6 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v1.GRAD : tensor<4x3xf32>

// Rules: lookup_table_v2
    // lookup_table_v2
    %v2 = "stablehlo.gather"(%v1, %v0) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, indices_are_sorted = false}> : (tensor<4x3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
    return %v2 : tensor<5x3xf32>

// Rules: lstm_sequence_grad
    // lstm_sequence
    %v2 = stablehlo.constant dense<0x00000000> : tensor<2x0x1xf32>
    %v3 = stablehlo.constant dense<0x00000000> : tensor<2x0x1xf32>
    %v4 = stablehlo.constant dense<0x00000000> : tensor<2x0x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x0x1xf32>
    // fill_any_like
    %v3.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x0x1xf32>
    // fill_any_like
    %v4.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x0x4xf32>
    // lstm_sequence_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<2x0x4xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<1x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<2x0x4xf32>, tensor<1x4xf32>

// Rules: lstm_sequence
    // lstm_sequence
    %v3 = stablehlo.constant dense<0x00000000> : tensor<0x2x1xf32>
    %v4 = stablehlo.constant dense<0x00000000> : tensor<0x2x1xf32>
    %v5 = stablehlo.constant dense<0x00000000> : tensor<0x2x4xf32>
    return %v3, %v4, %v5 : tensor<0x2x1xf32>, tensor<0x2x1xf32>, tensor<0x2x4xf32>

// Rules: matmul_grad
    // matmul
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x4xf32>
    // matmul_grad
    %4 = stablehlo.transpose %v1, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %v0.GRAD = stablehlo.dot_general %v2.GRAD, %4, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %6 = stablehlo.transpose %v0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %v1.GRAD = stablehlo.dot_general %6, %v2.GRAD, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<2x3xf32>, tensor<3x4xf32>

// Rules: matmul
    // matmul
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    return %v2 : tensor<2x4xf32>

// Rules: matmul_v2_grad
    // matmul_v2
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x4xf32>
    // matmul_v2_grad
    %4 = stablehlo.transpose %v1, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %v0.GRAD = stablehlo.dot_general %v2.GRAD, %4, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %6 = stablehlo.transpose %v0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %v1.GRAD = stablehlo.dot_general %6, %v2.GRAD, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<2x3xf32>, tensor<3x4xf32>

// Rules: matmul_v2
    // matmul_v2
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    return %v2 : tensor<2x4xf32>

// Rules: matmul_v2_grad_sgd
    // matmul_v2_grad_sgd
    %4 = stablehlo.transpose %v0, dims = [1, 0] : (tensor<0x3xf32>) -> tensor<3x0xf32>
    %5 = stablehlo.dot_general %4, %v2, contracting_dims = [1] x [0] : (tensor<3x0xf32>, tensor<0x4xf32>) -> tensor<3x4xf32>
    %6 = stablehlo.reshape %v3 : (tensor<1xf32>) -> tensor<f32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %8 = stablehlo.multiply %5, %7 : tensor<3x4xf32>
    %v4 = stablehlo.subtract %v1, %8 : tensor<3x4xf32>
    return %v4 : tensor<3x4xf32>

// Rules: mean_grad
    // mean
    %1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %v1 = stablehlo.divide %v0, %1 : tensor<f32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // mean_grad
    %4 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %v0.GRAD = stablehlo.divide %v1.GRAD, %4 : tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: mean
    // mean
    %1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %v1 = stablehlo.divide %v0, %1 : tensor<f32>
    return %v1 : tensor<f32>

// Rules: meshgrid_grad
    // meshgrid
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5xf32>
    // meshgrid_grad
    return %v1.GRAD : tensor<5xf32>

// Rules: meshgrid
    // meshgrid
    return %v0 : tensor<5xf32>

// Rules: mul_grad
    // mul
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x4xf32>
    // mul_grad
    %4 = stablehlo.transpose %v1, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %v0.GRAD = stablehlo.dot_general %v2.GRAD, %4, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %6 = stablehlo.transpose %v0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %v1.GRAD = stablehlo.dot_general %6, %v2.GRAD, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>
    return %v0.GRAD, %v1.GRAD : tensor<2x3xf32>, tensor<3x4xf32>

// Rules: mul
    // mul
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    return %v2 : tensor<2x4xf32>

// Rules: mv_grad
    // mv
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2xf32>
    // mv_grad
    %4 = stablehlo.reshape %v1 : (tensor<3xf32>) -> tensor<3x1xf32>
    %5 = stablehlo.reshape %v2.GRAD : (tensor<2xf32>) -> tensor<2x1xf32>
    %6 = stablehlo.transpose %4, dims = [1, 0] : (tensor<3x1xf32>) -> tensor<1x3xf32>
    %v0.GRAD = stablehlo.dot_general %5, %6, contracting_dims = [1] x [0] : (tensor<2x1xf32>, tensor<1x3xf32>) -> tensor<2x3xf32>
    %8 = stablehlo.transpose %v0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %9 = stablehlo.reshape %v2.GRAD : (tensor<2xf32>) -> tensor<2x1xf32>
    %10 = stablehlo.dot_general %8, %9, contracting_dims = [1] x [0] : (tensor<3x2xf32>, tensor<2x1xf32>) -> tensor<3x1xf32>
    %v1.GRAD = stablehlo.reshape %10 : (tensor<3x1xf32>) -> tensor<3xf32>
    return %v0.GRAD, %v1.GRAD : tensor<2x3xf32>, tensor<3xf32>

// Rules: mv
    // mv
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    return %v2 : tensor<2xf32>

// Rules: nearest_interp_v2_grad
    // nearest_interp_v2
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x1x3x4xf32>
    // nearest_interp_v2_grad
    return %v1.GRAD : tensor<2x1x3x4xf32>

// Rules: nearest_interp_v2
    // nearest_interp_v2
    return %v0 : tensor<2x1x3x4xf32>

// Rules: one_hot_v2
    // one_hot_v2
    %1 = stablehlo.iota dim = 0 : tensor<3xi64>
    %2 = stablehlo.broadcast_in_dim %v0, dims = [] : (tensor<i64>) -> tensor<3xi64>
    %v1 = stablehlo.compare EQ, %2, %1, SIGNED : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi1>
    return %v1 : tensor<3xi1>

// Rules: pad_grad
    // pad
    %1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // pad_grad
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    return %v1.GRAD : tensor<f32>

// Rules: pad
    // pad
    %1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    return %v0 : tensor<f32>

// Rules: pad3d_grad
    // pad3d
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x3x4x5x1xf32>
    // pad3d_grad
    return %v1.GRAD : tensor<2x3x4x5x1xf32>

// Rules: pad3d
    // pad3d
    return %v0 : tensor<2x3x4x5x1xf32>

// Rules: pixel_shuffle_grad
    // pixel_shuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x8x3x4xf32>) -> tensor<2x2x2x2x3x4xf32>
    %2 = stablehlo.transpose %1, dims = [0, 1, 4, 2, 5, 3] : (tensor<2x2x2x2x3x4xf32>) -> tensor<2x2x3x2x4x2xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x2x3x2x4x2xf32>) -> tensor<2x2x6x8xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x2x6x8xf32>
    // pixel_shuffle_grad
    %5 = stablehlo.reshape %v1.GRAD : (tensor<2x2x6x8xf32>) -> tensor<2x2x3x2x4x2xf32>
    %6 = stablehlo.transpose %5, dims = [0, 1, 3, 5, 2, 4] : (tensor<2x2x3x2x4x2xf32>) -> tensor<2x2x2x2x3x4xf32>
    %v0.GRAD = stablehlo.reshape %6 : (tensor<2x2x2x2x3x4xf32>) -> tensor<2x8x3x4xf32>
    return %v0.GRAD : tensor<2x8x3x4xf32>

// Rules: pixel_shuffle
    // pixel_shuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x8x3x4xf32>) -> tensor<2x2x2x2x3x4xf32>
    %2 = stablehlo.transpose %1, dims = [0, 1, 4, 2, 5, 3] : (tensor<2x2x2x2x3x4xf32>) -> tensor<2x2x3x2x4x2xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x2x3x2x4x2xf32>) -> tensor<2x2x6x8xf32>
    return %v1 : tensor<2x2x6x8xf32>

// Rules: pixel_unshuffle_grad
    // pixel_unshuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x5x3x4xf32>) -> tensor<2x5x3x1x4x1xf32>
    %2 = stablehlo.transpose %1, dims = [0, 1, 3, 5, 2, 4] : (tensor<2x5x3x1x4x1xf32>) -> tensor<2x5x1x1x3x4xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x5x1x1x3x4xf32>) -> tensor<2x5x3x4xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<2x5x3x4xf32>
    // pixel_unshuffle_grad
    %5 = stablehlo.reshape %v1.GRAD : (tensor<2x5x3x4xf32>) -> tensor<2x5x1x1x3x4xf32>
    %6 = stablehlo.transpose %5, dims = [0, 1, 4, 2, 5, 3] : (tensor<2x5x1x1x3x4xf32>) -> tensor<2x5x3x1x4x1xf32>
    %v0.GRAD = stablehlo.reshape %6 : (tensor<2x5x3x1x4x1xf32>) -> tensor<2x5x3x4xf32>
    return %v0.GRAD : tensor<2x5x3x4xf32>

// Rules: pixel_unshuffle
    // pixel_unshuffle
    %1 = stablehlo.reshape %v0 : (tensor<2x5x3x4xf32>) -> tensor<2x5x3x1x4x1xf32>
    %2 = stablehlo.transpose %1, dims = [0, 1, 3, 5, 2, 4] : (tensor<2x5x3x1x4x1xf32>) -> tensor<2x5x1x1x3x4xf32>
    %v1 = stablehlo.reshape %2 : (tensor<2x5x1x1x3x4xf32>) -> tensor<2x5x3x4xf32>
    return %v1 : tensor<2x5x3x4xf32>

// Rules: pool2d_grad
    // pool2d
    %v1 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x2xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x3x4x2xf32>
    // pool2d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x4xf32>
    return %v0.GRAD : tensor<0x3x5x4xf32>

// Rules: pool2d
    // pool2d
    %v1 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x2xf32>
    return %v1 : tensor<0x3x4x2xf32>

// Rules: range
    // range
    %3 = stablehlo.iota dim = 0 : tensor<3xi64>
    %4 = stablehlo.constant dense<2> : tensor<3xi64>
    %5 = stablehlo.multiply %3, %4 : tensor<3xi64>
    %6 = stablehlo.constant dense<0> : tensor<3xi64>
    %v3 = stablehlo.add %5, %6 : tensor<3xi64>
    return %v3 : tensor<3xi64>

// Rules: reduce_all
    // reduce_all
    return %v0 : tensor<i1>

// Rules: reduce_amax_grad
    // reduce_amax
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_amax_grad
    %2 = stablehlo.compare EQ, %v0, %v0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.convert %2 : (tensor<i1>) -> tensor<f32>
    %4 = stablehlo.divide %v1.GRAD, %3 : tensor<f32>
    %5 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.select %2, %4, %5 : tensor<i1>, tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: reduce_amax
    // reduce_amax
    return %v0 : tensor<f32>

// Rules: reduce_amin_grad
    // reduce_amin
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_amin_grad
    %2 = stablehlo.compare EQ, %v0, %v0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.convert %2 : (tensor<i1>) -> tensor<f32>
    %4 = stablehlo.divide %v1.GRAD, %3 : tensor<f32>
    %5 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.select %2, %4, %5 : tensor<i1>, tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: reduce_amin
    // reduce_amin
    return %v0 : tensor<f32>

// Rules: reduce_any
    // reduce_any
    return %v0 : tensor<i1>

// Rules: reduce_max_grad
    // reduce_max
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_max_grad
    %2 = stablehlo.compare EQ, %v0, %v0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.select %2, %v1.GRAD, %3 : tensor<i1>, tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: reduce_max
    // reduce_max
    return %v0 : tensor<f32>

// Rules: reduce_mean_grad
    // reduce_mean
    %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %2 = stablehlo.reduce(%v0 init: %1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.constant dense<0x40C00000> : tensor<f32>
    %v1 = stablehlo.divide %2, %3 : tensor<f32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_mean_grad
    %6 = stablehlo.constant dense<0x40C00000> : tensor<f32>
    %7 = stablehlo.divide %v1.GRAD, %6 : tensor<f32>
    %v0.GRAD = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    return %v0.GRAD : tensor<2x3xf32>

// Rules: reduce_mean
    // reduce_mean
    %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %2 = stablehlo.reduce(%v0 init: %1) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.constant dense<0x40C00000> : tensor<f32>
    %v1 = stablehlo.divide %2, %3 : tensor<f32>
    return %v1 : tensor<f32>

// Rules: reduce_min_grad
    // reduce_min
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_min_grad
    %2 = stablehlo.compare EQ, %v0, %v0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.select %2, %v1.GRAD, %3 : tensor<i1>, tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: reduce_min
    // reduce_min
    return %v0 : tensor<f32>

// Rules: reduce_sum_grad
    // reduce_sum
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // reduce_sum_grad
    return %v1.GRAD : tensor<f32>

// Rules: reduce_sum
    // reduce_sum
    return %v0 : tensor<f32>

// Rules: reshape2
    // reshape2
    %v1 = stablehlo.reshape %v0 : (tensor<1x1xf32>) -> tensor<f32>
    return %v1 : tensor<f32>

// Rules: reshape2_grad
    // reshape2
    %v1 = stablehlo.reshape %v0 : (tensor<f32>) -> tensor<1xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<1xf32>
    // reshape2_grad
    %v0.GRAD = stablehlo.reshape %v1.GRAD : (tensor<1xf32>) -> tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: rmsprop
    // rmsprop
    %5 = stablehlo.constant dense<0x3F000000> : tensor<f32>
    %6 = stablehlo.multiply %v2, %v2 : tensor<2x3xf32>
    %7 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %8 = stablehlo.multiply %v1, %7 : tensor<2x3xf32>
    %9 = stablehlo.negate %5 : tensor<f32>
    %10 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    %11 = stablehlo.add %9, %10 : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %13 = stablehlo.multiply %6, %12 : tensor<2x3xf32>
    %v7 = stablehlo.add %8, %13 : tensor<2x3xf32>
    %v8 = stablehlo.constant dense<0x00000000> : tensor<2x3xf32>
    %16 = stablehlo.broadcast_in_dim %v4, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %17 = stablehlo.multiply %16, %v2 : tensor<2x3xf32>
    %18 = stablehlo.constant dense<0x3E000000> : tensor<2x3xf32>
    %19 = stablehlo.add %v7, %18 : tensor<2x3xf32>
    %20 = stablehlo.sqrt %19 : tensor<2x3xf32>
    %21 = stablehlo.divide %17, %20 : tensor<2x3xf32>
    %22 = stablehlo.constant dense<0x3E800000> : tensor<2x3xf32>
    %23 = stablehlo.multiply %v3, %22 : tensor<2x3xf32>
    %v6 = stablehlo.add %23, %21 : tensor<2x3xf32>
    %v5 = stablehlo.subtract %v0, %v6 : tensor<2x3xf32>
    return %v5, %v6, %v7, %v8 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>

// Rules: roll_grad
    // roll
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x3xf32>
    // roll_grad
    return %v1.GRAD : tensor<0x3xf32>

// Rules: roll
    // roll
    return %v0 : tensor<0x3xf32>

// Rules: scatter
    // scatter
    return %v0 : tensor<4x3xf32>

// Rules: scatter_nd_add
    // scatter_nd_add
    %3 = stablehlo.constant dense<4> : tensor<1xi64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<1xi64>) -> tensor<5x1xi64>
    %5 = stablehlo.constant dense<0> : tensor<5x1xi64>
    %6 = stablehlo.compare LT, %v1, %5, SIGNED : (tensor<5x1xi64>, tensor<5x1xi64>) -> tensor<5x1xi1>
    %7 = stablehlo.add %v1, %4 : tensor<5x1xi64>
    %8 = stablehlo.select %6, %7, %v1 : tensor<5x1xi1>, tensor<5x1xi64>
    %v3 = "stablehlo.scatter"(%v0, %8, %v2) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%9: tensor<f32>, %10: tensor<f32>):
      %11 = stablehlo.add %9, %10 : tensor<f32>
      stablehlo.return %11 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5x1xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v3 : tensor<4x3xf32>

// Rules: scatter_nd_add_grad
    // scatter_nd_add_grad
    %3 = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<2xi64>) -> tensor<5x2xi64>
    %5 = stablehlo.constant dense<0> : tensor<5x2xi64>
    %6 = stablehlo.compare LT, %v0, %5, SIGNED : (tensor<5x2xi64>, tensor<5x2xi64>) -> tensor<5x2xi1>
    %7 = stablehlo.add %v0, %4 : tensor<5x2xi64>
    %8 = stablehlo.select %6, %7, %v0 : tensor<5x2xi1>, tensor<5x2xi64>
    %v4 = "stablehlo.gather"(%v1, %8) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>, indices_are_sorted = false}> : (tensor<2x3x4xf32>, tensor<5x2xi64>) -> tensor<5x4xf32>
    return %v1, %v4 : tensor<2x3x4xf32>, tensor<5x4xf32>

// Rules: seed
    // seed
    %v0 = stablehlo.constant dense<0> : tensor<1xi32>
    return %v0 : tensor<1xi32>

// Rules: select_input
    // select_input
    %2 = stablehlo.constant dense<0x00000000> : tensor<2xf32>
    %3 = stablehlo.reshape %v1 : (tensor<1xi32>) -> tensor<i32>
    %4 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.compare EQ, %3, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %v2 = stablehlo.select %5, %v0, %2 : tensor<i1>, tensor<2xf32>
    return %v2 : tensor<2xf32>

// Rules: select_output
    // select_output
    %2 = stablehlo.reshape %v1 : (tensor<1xi32>) -> tensor<i32>
    %3 = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %5 = stablehlo.constant dense<0x00000000> : tensor<2xf32>
    %v2 = stablehlo.select %4, %v0, %5 : tensor<i1>, tensor<2xf32>
    return %v2 : tensor<2xf32>

// Rules: shape
    // shape
    %v1 = stablehlo.constant dense<0> : tensor<0xi32>
    return %v1 : tensor<0xi32>

// Rules: size
    // size
    %v1 = stablehlo.constant dense<1> : tensor<i64>
    return %v1 : tensor<i64>

// Rules: slice_grad
    // slice
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // slice_grad
    %2 = stablehlo.constant dense<0x00000000> : tensor<f32>
    return %v1.GRAD : tensor<f32>

// Rules: slice
    // slice
    return %v0 : tensor<f32>

// Rules: split
    // split
    %v2 = stablehlo.slice %v0 [5:5] : (tensor<5xf32>) -> tensor<0xf32>
    return %v0, %v2 : tensor<5xf32>, tensor<0xf32>

// Rules: squeeze2_grad
    // squeeze2
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // squeeze2_grad
    return %v1.GRAD : tensor<f32>

// Rules: squeeze2
    // squeeze2
    return %v0 : tensor<f32>

// Rules: stack_grad
    // stack
    %v1 = stablehlo.reshape %v0 : (tensor<5xf32>) -> tensor<5x1xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<5x1xf32>
    // stack_grad
    %v0.GRAD = stablehlo.reshape %v1.GRAD : (tensor<5x1xf32>) -> tensor<5xf32>
    return %v0.GRAD : tensor<5xf32>

// Rules: stack
    // stack
    %v1 = stablehlo.reshape %v0 : (tensor<5xf32>) -> tensor<5x1xf32>
    return %v1 : tensor<5x1xf32>

// Rules: strided_slice_grad
    // strided_slice
    %v1 = stablehlo.reverse %v0, dims = [1] : tensor<4x5xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<4x5xf32>
    // strided_slice_grad
    %v0.GRAD = stablehlo.reverse %v1.GRAD, dims = [1] : tensor<4x5xf32>
    %4 = stablehlo.constant dense<0x00000000> : tensor<f32>
    return %v0.GRAD : tensor<4x5xf32>

// Rules: strided_slice
    // strided_slice
    %v1 = stablehlo.reverse %v0, dims = [1] : tensor<4x5xf32>
    return %v1 : tensor<4x5xf32>

// Rules: sum
    // sum
    return %v0 : tensor<2x3xf32>

// Rules: take_along_axis_grad
    // take_along_axis
    // fill_any_like
    %v2.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // take_along_axis_grad
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.add %3, %v2.GRAD : tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: take_along_axis
    // take_along_axis
    return %v0 : tensor<f32>

// Rules: temporal_shift_grad
    // temporal_shift
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<0x4x2x3xf32>
    // temporal_shift_grad
    return %v1.GRAD : tensor<0x4x2x3xf32>

// Rules: temporal_shift
    // temporal_shift
    return %v0 : tensor<0x4x2x3xf32>

// Rules: tile_grad
    // tile
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // tile_grad
    return %v1.GRAD : tensor<f32>

// Rules: tile
    // tile
    return %v0 : tensor<f32>

// Rules: top_k_v2_grad
    // top_k_v2
    %1 = stablehlo.iota dim = 0 : tensor<7xi64>
    %12:2 = "stablehlo.sort"(%v0, %1) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%2: tensor<f32>, %3: tensor<f32>, %4: tensor<i64>, %5: tensor<i64>):
      %6 = stablehlo.compare GT, %2, %3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %7 = stablehlo.compare NE, %2, %2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %8 = stablehlo.compare NE, %3, %3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %9 = stablehlo.not %8 : tensor<i1>
      %10 = stablehlo.and %7, %9 : tensor<i1>
      %11 = stablehlo.or %6, %10 : tensor<i1>
      stablehlo.return %11 : tensor<i1>
    }) : (tensor<7xf32>, tensor<7xi64>) -> (tensor<7xf32>, tensor<7xi64>)
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<7xf32>
    // top_k_v2_grad
    %14 = stablehlo.constant dense<0x00000000> : tensor<7xf32>
    %15 = stablehlo.reshape %12#1 : (tensor<7xi64>) -> tensor<7x1xi64>
    %v0.GRAD = "stablehlo.scatter"(%14, %15, %v1.GRAD) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%16: tensor<f32>, %17: tensor<f32>):
      %18 = stablehlo.add %16, %17 : tensor<f32>
      stablehlo.return %18 : tensor<f32>
    }) : (tensor<7xf32>, tensor<7x1xi64>, tensor<7xf32>) -> tensor<7xf32>
    return %v0.GRAD : tensor<7xf32>

// Rules: top_k_v2
    // top_k_v2
    %1 = stablehlo.iota dim = 1 : tensor<2x4xi64>
    %7:2 = "stablehlo.sort"(%v0, %1) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%2: tensor<i32>, %3: tensor<i32>, %4: tensor<i64>, %5: tensor<i64>):
      %6 = stablehlo.compare GT, %2, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<2x4xi32>, tensor<2x4xi64>) -> (tensor<2x4xi32>, tensor<2x4xi64>)
    %v1 = stablehlo.slice %7#0 [0:2, 0:3] : (tensor<2x4xi32>) -> tensor<2x3xi32>
    %v2 = stablehlo.slice %7#1 [0:2, 0:3] : (tensor<2x4xi64>) -> tensor<2x3xi64>
    return %v1, %v2 : tensor<2x3xi32>, tensor<2x3xi64>

// Rules: transpose2_grad
    // transpose2
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // transpose2_grad
    return %v1.GRAD : tensor<f32>

// Rules: transpose2
    // transpose2
    return %v0 : tensor<f32>

// Rules: tril_triu
    // tril_triu
    %1 = stablehlo.iota dim = 1 : tensor<3x2xi32>
    %2 = stablehlo.iota dim = 0 : tensor<3x2xi32>
    %3 = stablehlo.subtract %1, %2 : tensor<3x2xi32>
    %4 = stablehlo.constant dense<0> : tensor<3x2xi32>
    %5 = stablehlo.compare LE, %3, %4, SIGNED : (tensor<3x2xi32>, tensor<3x2xi32>) -> tensor<3x2xi1>
    %6 = stablehlo.constant dense<0> : tensor<3x2xi64>
    %v1 = stablehlo.select %5, %v0, %6 : tensor<3x2xi1>, tensor<3x2xi64>
    return %v1 : tensor<3x2xi64>

// Rules: unbind
    // unbind
    %1 = stablehlo.slice %v0 [0:1, 0:3] : (tensor<2x3xf32>) -> tensor<1x3xf32>
    %v1 = stablehlo.reshape %1 : (tensor<1x3xf32>) -> tensor<3xf32>
    %3 = stablehlo.slice %v0 [1:2, 0:3] : (tensor<2x3xf32>) -> tensor<1x3xf32>
    %v2 = stablehlo.reshape %3 : (tensor<1x3xf32>) -> tensor<3xf32>
    return %v1, %v2 : tensor<3xf32>, tensor<3xf32>

// Rules: unfold_grad
    // unfold
    %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %2 = stablehlo.pad %v0, %1, low = [0, 0, 2, 1], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x3x4xf32>, tensor<f32>) -> tensor<1x2x5x5xf32>
    %3 = stablehlo.slice %2 [0:1, 0:2, 0:5, 0:5:2] : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x3xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x2x5x3xf32>) -> tensor<1x2x1x15xf32>
    %v1 = stablehlo.reshape %4 : (tensor<1x2x1x15xf32>) -> tensor<1x2x15xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<1x2x15xf32>
    // unfold_grad
    %7 = stablehlo.reshape %v1.GRAD : (tensor<1x2x15xf32>) -> tensor<1x2x1x15xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x2x1x15xf32>) -> tensor<1x2x5x3xf32>
    %9 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.pad %8, %9, low = [0, 0, -2, -1], high = [0, 0, 0, 0], interior = [0, 0, 0, 1] : (tensor<1x2x5x3xf32>, tensor<f32>) -> tensor<1x2x3x4xf32>
    return %v0.GRAD : tensor<1x2x3x4xf32>

// Rules: unfold
    // unfold
    %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %2 = stablehlo.pad %v0, %1, low = [0, 0, 2, 1], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x3x4xf32>, tensor<f32>) -> tensor<1x2x5x5xf32>
    %3 = stablehlo.slice %2 [0:1, 0:2, 0:5, 0:5:2] : (tensor<1x2x5x5xf32>) -> tensor<1x2x5x3xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x2x5x3xf32>) -> tensor<1x2x1x15xf32>
    %v1 = stablehlo.reshape %4 : (tensor<1x2x1x15xf32>) -> tensor<1x2x15xf32>
    return %v1 : tensor<1x2x15xf32>

// Rules: uniform_random
    // uniform_random
    %0 = stablehlo.constant dense<1> : tensor<ui64>
    %1 = stablehlo.constant dense<0x0000000000000000> : tensor<0xf64>
    %2 = stablehlo.constant dense<0x0000000000000000> : tensor<0xf64>
    %3 = stablehlo.multiply %1, %2 : tensor<0xf64>
    %4 = stablehlo.constant dense<0x4000000000000000> : tensor<0xf64>
    %5 = stablehlo.add %3, %4 : tensor<0xf64>
    %v0 = stablehlo.convert %5 : (tensor<0xf64>) -> tensor<0xf32>
    return %v0 : tensor<0xf32>

// Rules: unsqueeze2_grad
    // unsqueeze2
    %v1 = stablehlo.reshape %v0 : (tensor<f32>) -> tensor<1xf32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<1xf32>
    // unsqueeze2_grad
    %v0.GRAD = stablehlo.reshape %v1.GRAD : (tensor<1xf32>) -> tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: unsqueeze2
    // unsqueeze2
    return %v0 : tensor<3xi64>

// Rules: unstack_grad
    // unstack
    %v1 = stablehlo.reshape %v0 : (tensor<1xf32>) -> tensor<f32>
    // fill_any_like
    %v1.GRAD = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // unstack_grad
    %v0.GRAD = stablehlo.reshape %v1.GRAD : (tensor<f32>) -> tensor<1xf32>
    return %v0.GRAD : tensor<1xf32>

// Rules: unstack
    // unstack
    %v1 = stablehlo.reshape %v0 : (tensor<1xf32>) -> tensor<f32>
    return %v1 : tensor<f32>

