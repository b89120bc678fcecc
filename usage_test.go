package main

import "testing"

func TestPeakRecord(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 0, 1023: 0, 5 << 20: 5 << 20, 1<<34 - 1024: 1<<34 - 1024, 1 << 40: 1<<34 - 1024} {
		record := peakRecord(bytes).encode()
		decoded := decodeChildRecords(record[:])
		if len(decoded) != 1 || decoded[0].step != stepExecve || decoded[0].peak() != want {
			t.Errorf("%d: %+v, peak %d, want %d", bytes, decoded, decoded[0].peak(), want)
		}
		o := outcome{spawned: true, records: decoded, usage: treeUsage{peak: want + peakSlack}}
		if o.ownPeak() != want || o.peakMeasured() {
			t.Errorf("%d: own peak %d, measured %v", bytes, o.ownPeak(), o.peakMeasured())
		}
		if o.usage.peak++; !o.peakMeasured() {
			t.Errorf("%d: a larger peak is not measured", bytes)
		}
	}
}
