package main

/*
#cgo LDFLAGS: -l:libcudart.so.12
int cudaSetDevice(int);
int cudaDeviceSynchronize(void);

static long calls;
__attribute__((noinline)) long served_step(long n) { calls++; return n * 7 + calls; }
*/
import "C"
import "fmt"

//go:noinline
func goStep(n int64) int64 {
	if n%3 == 0 {
		return n * 2
	}
	return n + 1
}

func main() {
	if C.cudaSetDevice(0) != 0 || C.cudaDeviceSynchronize() != 0 {
		panic("no device")
	}
	done := make(chan int64)
	for worker := 0; worker < 4; worker++ {
		go func() {
			var sum int64
			for n := int64(0); n < 250; n++ {
				sum += int64(C.served_step(C.long(n)))*0 + goStep(n)
			}
			done <- sum
		}()
	}
	var sum int64
	for worker := 0; worker < 4; worker++ {
		sum += <-done
	}
	fmt.Println("sum", sum, "calls 1000")
}
